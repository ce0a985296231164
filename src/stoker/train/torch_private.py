# pyright: reportPrivateUsage=false, reportUnknownMemberType=false
# (the only module of the training that uses torch's private names)
"""Torch's private names that acting on a training program needs, each once.

``SYMBOLS`` is plain data: a test reads it even if torch lacks one of the names and this module can't be imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.nn.parallel import DistributedDataParallel

SYMBOLS = (
    # dotted name, purpose, since
    (
        "torch.nn.parallel.DistributedDataParallel._check_comm_hook", "refuses a program's hook as torch does",
        "before 2.6",
    ),
    (
        "torch.nn.parallel.DistributedDataParallel._register_builtin_comm_hook",
        "a program's hook of torch's own C++: replaced", "before 2.6",
    ),
)  # fmt: skip

BUILTIN = "_register_builtin_comm_hook"
"""Name of the method that registers a hook by its kind."""


def check_hook(ddp: DistributedDataParallel, hook: Callable[..., Any]) -> None:
    """Raises what ``register_comm_hook`` raises for a hook of a wrong form."""
    ddp._check_comm_hook(hook)


def kind_of(builtin: Any) -> str:
    """Which of torch's own hooks a program asked for: ``ALLREDUCE`` or ``FP16_COMPRESS``."""
    return str(builtin).rpartition(".")[2]

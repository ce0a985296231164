# pyright: reportPrivateUsage=false, reportUnknownMemberType=false
# (the only module of the training that uses torch's private names)
"""Torch's private names that acting on a training program needs, each once.

``SYMBOLS`` is plain data: a test reads it even if torch lacks one of the names and this module can't be imported.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, cast

from torch import nn
from torch.nn import utils
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad
from torch.optim import Optimizer

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
    (
        "torch.optim.Optimizer._optimizer_step_post_hooks", "what comes first behind a step, before a program's hooks",
        "before 2.6",
    ),
    (
        "torch.nn.utils.clip_grad._get_total_norm", "the norm that clipping goes by: of whole gradients", "before 2.6",
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


_TOTAL_NORMS = ("_get_total_norm", "get_total_norm")
"""Its names over time; the second is public."""


def norms() -> list[tuple[Any, str]]:
    """Where torch has the norm of gradients: what ``clip_grad_norm_`` calls, and what programs do.

    Raises:
        RuntimeError: this torch has it elsewhere.
    """
    called = [(clip_grad, name) for name in _TOTAL_NORMS if hasattr(clip_grad, name)]
    if not called:
        raise RuntimeError(
            "`torch.nn.utils.clip_grad` must compute norms by `_get_total_norm` or `get_total_norm`, and this torch's "
            "has neither; stoker doctor lists what is missing"
        )
    return [*called, *((utils, name) for name in _TOTAL_NORMS if hasattr(utils, name))]


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def has_hooks(module: nn.Module) -> bool:
    """Whether a program has registered hooks on a module, which another one in its place would not have."""
    return any(vars(module).get(name) for name in _HOOKS)


def first_after_step(optimizer: Optimizer, hook: Callable[..., None]) -> Any:
    """Calls a hook behind an optimizer's steps, before all others that it has; returns its handle."""
    handle = optimizer.register_step_post_hook(hook)
    hooks: OrderedDict[int, Any] = cast("Any", optimizer)._optimizer_step_post_hooks
    hooks.move_to_end(next(reversed(hooks)), last=False)
    return handle

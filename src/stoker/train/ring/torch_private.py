# pyright: reportAttributeAccessIssue=false, reportPrivateUsage=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false
# (the one module of the ring that uses names which torch keeps to itself)
"""Torch's private names that own connections between ranks need."""

from __future__ import annotations

import torch
from torch.distributed import ProcessGroup

SYMBOLS = (
    # dotted name, purpose, since
    ("torch.distributed.ProcessGroup._get_backend", "where a process group has its time-out", "before 2.6"),
)
_DEFAULT_S = 1800.0
"""Torch's default for gloo."""


def timeout_s(group: ProcessGroup) -> float:
    """The time-out of a process group's collectives on the CPU (s); torch's default where it does not say."""
    try:
        options = group._get_backend(torch.device("cpu")).options
        return float(options._timeout.total_seconds())
    except (AttributeError, RuntimeError):
        return _DEFAULT_S


def ignored_names(module: torch.nn.Module) -> set[str]:
    """Parameters and buffers that DDP leaves alone, as a program has marked them on its module."""
    names: set[str] = vars(module).get("_ddp_params_and_buffers_to_ignore", set())
    return set(names)

"""Which modules of this process are in shares, or about to be: what else acts on replicas leaves them alone."""

from __future__ import annotations

import weakref

from torch import nn

_shared: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def mark(module: nn.Module) -> None:
    """Notes that a module is in shares, before DDP is made around it."""
    _shared.add(module)


def unmark(module: nn.Module) -> None:
    """Notes that a module is whole after all."""
    _shared.discard(module)


def is_shared(module: nn.Module) -> bool:
    """Whether a module is in shares."""
    return module in _shared

# pyright: reportUnknownMemberType=false
# (torch.distributed is typed in part)
"""Ranks that have not joined: what a mean is over, where a program's ranks have other numbers of batches."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class ActiveRanks:
    """The ranks of one module that make steps.

    Args:
        group: of the ranks.
    """

    def __init__(self, group: Any) -> None:
        self._group = group
        self._ranks = dist.get_world_size(group)
        self._hook: Any = None
        """Notes whether this rank makes steps, while the mean is over those that do."""
        self._forwarded = False
        self.has_joined = False
        """Whether this rank takes part in the steps of others alone."""
        self.scale = 1.0 / self._ranks
        """What a sum is multiplied by."""

    def divide_by_active(self, ddp: DistributedDataParallel) -> None:
        """Until :meth:`joined` ends it, the mean is over the ranks that have not joined yet."""
        if self._hook is None:

            def forwarded(*_: Any) -> None:
                self._forwarded = True

            self._hook = ddp.register_forward_pre_hook(forwarded)

    def count(self, device: torch.device) -> None:
        """Counts the ranks that make this step, where the mean is over them. Collective then."""
        if self._hook is None:
            return
        active = torch.tensor([float(self._forwarded)], device=device)
        dist.all_reduce(active, group=self._group)
        self.scale = 1.0 / max(1.0, float(active))
        self._forwarded = False

    def joined(self, *, is_over: bool) -> None:
        """This rank has no batches any more, and answers until the others are through, too."""
        self.has_joined = not is_over
        if is_over and self._hook is not None:
            self._hook.remove()
            self._hook = None
            self.scale = 1.0 / self._ranks

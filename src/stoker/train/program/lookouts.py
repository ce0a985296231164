"""Who looks out for lost ranks of a group: those that exchange share one lookout, and the last one closes it."""

from __future__ import annotations

import weakref
from typing import Any

import torch.distributed as dist

from stoker.core.errors import ExchangeError
from stoker.train.ring.groups import leave, lookout_of
from stoker.train.ring.watching.blame import RankFault

_holders: weakref.WeakKeyDictionary[dist.ProcessGroup, weakref.WeakSet[OwnLookout]] = weakref.WeakKeyDictionary()


class OwnLookout:
    """One module's hold of the lookout of its group.

    Args:
        group: of the replicas.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._found: Any = None

    def connect(self) -> str:
        """Connects the ranks; a collective of the group, which ends alike on all of them.

        Returns:
            Why there is no lookout; empty if there is one, or if the group has no tensors on the CPU.
        """
        if self._found is not None or "gloo" not in str(dist.get_backend(self._group)):
            return ""
        try:
            self._found = lookout_of(self._group)
        except (ExchangeError, ValueError, OSError) as error:
            return str(error)
        _holders.setdefault(self._group, weakref.WeakSet()).add(self)
        return ""

    def ask(self) -> RankFault | None:
        """The rank that explains the failure of a collective; None if nobody knows of one."""
        return None if self._found is None else self._found.ask()

    def close(self) -> None:
        """Lets it go; the last hold closes it."""
        found, self._found = self._found, None
        if found is None:
            return
        holders = _holders.get(self._group)
        if holders is not None:
            holders.discard(self)
        if not holders:
            _holders.pop(self._group, None)
            leave(self._group)


def words_of(fault: RankFault | None) -> str:
    """A lost rank and what it did, as a part of a sentence."""
    return "one is lost" if fault is None else f"`rank {fault.rank}` {fault.why}"

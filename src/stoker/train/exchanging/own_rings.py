# pyright: reportUnknownMemberType=false
# (torch.distributed is typed in part)
"""The sockets that a replica's sums go by where its plan names them: connected on all ranks, or on none.

Replicas of one process group share its connections; they are closed with the last one that has them.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
import torch.distributed as dist

from stoker.core.mishaps import reraise_from_handler
from stoker.train.ring.groups import exchange_of, release
from stoker.train.ring.transport import RingExchange

BY_RING = ("ring", "islands")
"""Methods whose sums go by sockets."""
_holders: weakref.WeakKeyDictionary[dist.ProcessGroup, weakref.WeakSet[OwnRing]] = weakref.WeakKeyDictionary()


class OwnRing:
    """One replica's hold of the connections of its group.

    Args:
        group: of the replicas.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self.exchange: RingExchange | None = None
        """The connections, from :meth:`connect` to :meth:`close`."""

    def connect(self, device: torch.device) -> str:
        """Connects all ranks; a collective of the group, which ends alike on all of them.

        Args:
            device: of the gradients.

        Returns:
            Why there is no ring, in the words of this rank; empty if there is one.
        """
        why = ""
        try:
            if device.type != "cpu":
                raise ValueError(f"sockets carry tensors on the CPU alone, got some on {device.type}")
            self.exchange = exchange_of(self._group)
            _holders.setdefault(self._group, weakref.WeakSet()).add(self)
        except Exception as error:  # the others wait for this rank's word
            reraise_from_handler(error)
            why = str(error)
        failed: Any = torch.tensor([float(bool(why))], device=device)
        dist.all_reduce(failed, group=self._group)
        if not failed:
            return ""
        self.close()
        return why or "another rank can't connect"

    def close(self) -> None:
        """Lets the connections go; the last replica's hold ends them."""
        if self.exchange is None:
            return
        self.exchange = None
        holders = _holders.get(self._group)
        if holders is not None:
            holders.discard(self)
        if not holders:
            _holders.pop(self._group, None)
            release(self._group)

"""Names a lost rank where the program's own backend carries the exchange: gloo says that a rank is lost, and not which.

A ring of connections for the watch alone: two sockets and one thread a rank. It finds nothing by itself. Where a
collective of the backend fails, the ranks ask each other who has lost a neighbour.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

from stoker.core.processes.forking import Owner, at_fork
from stoker.train.ring.addresses import own_address
from stoker.train.ring.engine import WATCH
from stoker.train.ring.meeting import Assembly, meet
from stoker.train.ring.watching.blame import RankFault
from stoker.train.ring.watching.watch import RankWatch


class Lookout:
    """The watch over the ranks of a group, until it is closed or collected.

    Args:
        assembly: the ranks, two at least; connecting is a collective of theirs.
        timeout_s: of the process group.
        find_address: finds the address to listen on.

    Raises:
        ExchangeError: the ranks can't connect; all of them raise it.
    """

    def __init__(
        self, assembly: Assembly, timeout_s: float, find_address: Callable[[], str] = own_address
    ) -> None:  # fmt: skip
        ranks = list(assembly.ranks)
        sockets, _ = meet(assembly, {WATCH: range(len(ranks))}, find_address, timeout_s)
        own = sockets[WATCH]
        self._watch = RankWatch(
            (own.preceding, ranks[own.neighbour(-1)]), (own.following, ranks[own.neighbour(1)]), timeout_s,
            lambda: None,
        )  # fmt: skip
        self._close = weakref.finalize(self, _end, self._watch, Owner())
        at_fork(self._abandon)

    @property
    def is_closed(self) -> bool:
        """Whether :meth:`close` has been called."""
        return not self._close.alive

    def ask(self) -> RankFault | None:
        """The rank that explains the failure of a collective; None if no rank that answers knows of one."""
        return None if self.is_closed else self._watch.ask()

    def close(self) -> None:
        """Ends the thread and closes the sockets."""
        self._close()

    def _abandon(self) -> None:
        if self._close.detach() is not None:
            self._watch.abandon()


def _end(watch: RankWatch, owner: Owner) -> None:
    if owner.is_here:
        watch.close()

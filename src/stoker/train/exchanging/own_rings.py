# pyright: reportUnknownMemberType=false
# (torch.distributed is typed in part)
"""The sockets that a replica's sums go by where its plan names them: connected on all ranks, or on none.

Replicas of one process group share its connections; they are closed with the last one that has them. Those that the
program itself has connected are used as they are, and stay.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.distributed as dist

from stoker.core.mishaps import reraise_from_handler
from stoker.records.exchange import ProbedLinks
from stoker.train.ring.groups import connect, exchange_of, opened, release
from stoker.train.ring.islands import can_sum
from stoker.train.ring.meeting import GATHERED_BYTES, host_name
from stoker.train.ring.probe import AFTER_SEARCH, islands_of, order_of, probe
from stoker.train.ring.search import LEAST_RANKS, search, shift_rings
from stoker.train.ring.transport import GroupAssembly, RingExchange

BY_RING = ("ring", "islands")
"""Methods whose sums go by sockets."""
_holders: weakref.WeakKeyDictionary[dist.ProcessGroup, weakref.WeakSet[OwnRing]] = weakref.WeakKeyDictionary()
_made: weakref.WeakSet[RingExchange] = weakref.WeakSet()
"""Connections that were made here."""
_probed: weakref.WeakKeyDictionary[dist.ProcessGroup, ProbedLinks] = weakref.WeakKeyDictionary()
"""Links of groups, each probed once."""


class IslandReducer:
    """Sums over the islands of an exchange.

    Args:
        exchange: with islands.
    """

    def __init__(self, exchange: RingExchange) -> None:
        self._exchange = exchange

    def start(self, flat: torch.Tensor, name: str) -> torch.futures.Future[torch.Tensor]:
        """Begins to sum a tensor in place over all ranks."""
        return self._exchange.start_by_islands(flat, name)


class OwnRing:
    """One replica's hold of the connections of its group.

    Args:
        group: of the replicas.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self.exchange: RingExchange | None = None
        """The connections, from :meth:`connect` or :meth:`probe` to :meth:`close`."""

    @property
    def links(self) -> ProbedLinks | None:
        """What a probe has found; None without one."""
        return _probed.get(self._group)

    @property
    def islands(self) -> IslandReducer | None:
        """What sums by islands; None where there are none."""
        exchange = self.exchange
        return IslandReducer(exchange) if exchange is not None and exchange.islands else None

    def connect(self, device: torch.device, *, by_islands: bool = False) -> str:
        """Connects all ranks; a collective of the group, which ends alike on all of them.

        Args:
            device: of the gradients.
            by_islands: whether sums go by islands, where there are islands of one size.

        Returns:
            Why there is no ring, in the words of this rank; empty if there is one.
        """

        def connected() -> None:
            if device.type != "cpu":
                raise ValueError(f"sockets carry tensors on the CPU alone, got some on {device.type}")
            self._hold(self._connected(by_islands=by_islands))

        return self._on_all(connected, "connect", device)

    def probe(self, device: torch.device) -> str:
        """Probes the links of the group, once; a collective, which ends alike on all ranks. It connects them first.

        Args:
            device: of the gradients.

        Returns:
            Why there is no probe, in the words of this rank; empty if there is one.
        """
        if self.links is not None:
            return ""
        found: list[ProbedLinks] = []

        def probed() -> None:
            exchange = self._connected(by_islands=False, ordered=True)
            self._hold(exchange)
            places, searched_s, part = (), 0.0, 1.0
            if self._is_unclear(exchange):
                exchange, places, searched_s = self._searched(exchange)
                part = AFTER_SEARCH
            seen = probe(exchange, places, part)
            order = exchange.order
            found.append(
                ProbedLinks(
                    order=list(order), sums=list(seen.points), latencies_s=list(seen.latencies_s),
                    rates=list(seen.rates), islands=[[order[place] for place in island] for island in seen.islands],
                    block_bytes=seen.block_bytes, took_s=searched_s + seen.took_s,
                )
            )  # fmt: skip

        why = self._on_all(probed, "probe its links", device)
        if not why:
            _probed[self._group] = found[0]
        return why.partition("; look at ")[0]  # the program goes on

    def _is_unclear(self, exchange: RingExchange) -> bool:
        """Whether machines say nothing of who is close to whom, and this one may ask for further connections."""
        return exchange in _made and len(set(exchange.hosts)) == exchange.size >= LEAST_RANKS

    def _searched(self, exchange: RingExchange) -> tuple[RingExchange, tuple[tuple[int, ...], ...], float]:
        """A ring in the order of the islands that their rates tell, these as its places if any, and seconds it took."""
        self._hold(connect(self._group, further=shift_rings(exchange.size, exchange.rank)))
        searching = self._noted(cast("RingExchange", self.exchange))
        begun = time.perf_counter()
        islands = search(searching)
        took_s = time.perf_counter() - begun
        order = [rank for island in islands for rank in island]
        found = self._noted(connect(self._group, order=order))
        self._hold(found)
        is_found = len(islands) < len(order)
        return found, tuple(tuple(map(order.index, island)) for island in islands) if is_found else (), took_s

    def _on_all(self, work: Callable[[], object], what: str, device: torch.device) -> str:
        """Does what all ranks do; where one fails, none of them has a ring."""
        why = ""
        try:
            work()
        except Exception as error:  # the others wait for this rank's word
            reraise_from_handler(error)
            why = str(error) or type(error).__name__
            if self.exchange is not None:
                self.exchange.close()  # the others wait for its bytes before that
        failed: Any = torch.tensor([float(bool(why))], device=device)
        dist.all_reduce(failed, group=self._group)
        if not failed:
            return ""
        self.close()
        return why or f"another rank can't {what}"

    def _connected(self, *, by_islands: bool, ordered: bool = False) -> RingExchange:
        """The connections as they are to be, or as another holder or the program has them."""
        found, links = opened(self._group), self.links
        others = set(_holders.get(self._group, ())) - {self}
        if found is not None and (others or found not in _made):
            return found
        if links is None and not (by_islands or ordered):
            return self._noted(exchange_of(self._group))
        if links is None:
            hosts = [host.decode() for host in GroupAssembly(self._group).gather(host_name().encode()[:GATHERED_BYTES])]
            order = order_of(hosts)
            islands = islands_of(hosts, ())
        else:
            order, islands = links.order, links.islands
        wanted = tuple(map(tuple, islands)) if by_islands and can_sum(islands) else ()
        if found is None or found.islands != wanted:
            found = connect(self._group, order=None if wanted else list(order), islands=wanted)
        if links is not None:
            found.block_bytes = links.block_bytes
        return self._noted(found)

    def _noted(self, exchange: RingExchange) -> RingExchange:
        _made.add(exchange)
        return exchange

    def _hold(self, exchange: RingExchange) -> None:
        self.exchange = exchange
        _holders.setdefault(self._group, weakref.WeakSet()).add(self)

    def close(self) -> None:
        """Lets the connections go; the last replica's hold ends them."""
        exchange, self.exchange = self.exchange, None
        if exchange is None:
            return
        holders = _holders.get(self._group)
        if holders is not None:
            holders.discard(self)
        if not holders:
            _holders.pop(self._group, None)
            if exchange in _made:
                release(self._group)

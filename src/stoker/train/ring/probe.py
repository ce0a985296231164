"""What the links between ranks can do, from a few exchanges that are made for it.

All ranks send to their next ones at once, as they do in a ring: links that share an uplink or a machine's cores show
what is left of them. It takes about 0.3 s and 1 MB of each rank at most. What is found is the same on all ranks.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from stoker.train.ring.links import LinkBrokenError, RingLink
from stoker.train.ring.passes import Moved
from stoker.train.ring.transport import RingExchange

_PINGS = 5
FIRST_BYTES, _MOST_STREAMED, _MOST_SUMMED, _SMALL_BYTES = 8 << 10, 120 << 10, 80 << 10, 256
_STREAMS = 3
"""The first drains what a network lets through in a burst. The quicker of the others counts: what else the machine does
makes some slower, and few faster."""
_LATER_S = struct.Struct("<d")
_FACTS = 3
"""Numbers that all ranks learn of each, besides the times of sums."""
_STREAM_S, _SUMS_S, _SMALL_S = 0.05, 0.12, 0.04
"""What the parts may take: the long streams, the large sums, the small ones."""
_SUMS, _MOST_SMALL = 3, 4
FASTER = 1.5
"""Times the slowest link's rate from which a link joins two ranks to one island: shared links halve at least, and on a
busy machine ranks find a third less than a link has."""
WIRE_BYTES_PER_S = 250e6
"""Rate from which processors limit a link, and not the wire: on one machine's loopback links differed by 3."""
_LEAST_BLOCK, _MOST_BLOCK = 64 << 10, 1 << 20
AFTER_SEARCH = 0.6
"""What a search leaves of the time and the bytes."""
_OVER_STEP = 64
"""Times a ring's step that a block takes on the wire: its own cost then adds 2 %."""


@dataclass(frozen=True, slots=True)
class ProbeSizes:
    """What is exchanged after the first look.

    Attributes:
        streamed: bytes from each rank to its next, at once, in each of the streams.
        summed: bytes of the large sums; a multiple of 4.
        small: how many small sums there are.
    """

    streamed: int
    summed: int
    small: int

    def sent(self, ranks: int) -> float:
        """Bytes of each rank, but for openings."""
        share = 2 * (ranks - 1) / ranks
        facts = 8 * ranks * (_FACTS + _SUMS + self.small)
        sums = _SUMS * self.summed + self.small * _SMALL_BYTES
        return _STREAMS * (FIRST_BYTES + self.streamed) + share * (sums + facts)


@dataclass(frozen=True, slots=True)
class LinkProbe:
    """What was found; the same on all ranks but for ``took_s``.

    Attributes:
        points: bytes and seconds of sums over all ranks: what a link is fitted to.
        latencies_s: from each place of the ring to the next: half of the shortest way there and back.
        rates: bytes/s from each place of the ring to the next, all at once.
        islands: places of the ring in groups of close ones.
        block_bytes: for sums of many blocks.
        took_s: seconds of all of it, on this rank.
    """

    points: tuple[tuple[float, float], ...]
    latencies_s: tuple[float, ...]
    rates: tuple[float, ...]
    islands: tuple[tuple[int, ...], ...]
    block_bytes: int
    took_s: float


def sizes_for(rate: float, latency_s: float, ranks: int, part: float = 1.0) -> ProbeSizes:
    """What fits into the time and the bytes of a probe.

    Args:
        rate: of the slowest link (bytes/s).
        latency_s: of the slowest link.
        ranks: in the ring, at least 2.
        part: of the time and of the bytes that is left.
    """
    share = 2 * (ranks - 1) / ranks
    streamed = int(max(FIRST_BYTES, part * min(_MOST_STREAMED, rate * _STREAM_S / _STREAMS)))
    summed = int(max(FIRST_BYTES, part * min(_MOST_SUMMED, rate * _SUMS_S / share / _SUMS)))
    step_s = 2 * (ranks - 1) * max(latency_s, 1e-6)
    return ProbeSizes(streamed, summed // 4 * 4, max(1, min(_MOST_SMALL, int(_SMALL_S / step_s))))


def rate_of(size: int, whole_s: float, later_s: float) -> float:
    """Bytes/s of a stream: the lesser of two that may each be too high.

    The sender's own is too high where a network lets the first bytes after a pause through faster than they go on, the
    receiver's where the system wakes it late and it finds many bytes at once.

    Args:
        size: bytes.
        whole_s: for the sender, from the first byte to the answer that the last one is there.
        later_s: for the receiver, from the half of the bytes to all of them.
    """
    return min(size / max(whole_s, 1e-7), (size - size // 2) / max(later_s, 1e-7))


def order_of(hosts: Sequence[str]) -> list[int]:
    """Ranks machine by machine, in the order in which machines first occur."""
    return sorted(range(len(hosts)), key=lambda rank: (hosts.index(hosts[rank]), rank))


def islands_of(hosts: Sequence[str], rates: Sequence[float]) -> tuple[tuple[int, ...], ...]:
    """Places of a ring that are close to each other: of one machine, or by a link much faster than a slow wire.

    Places that are not next to each other are joined by their machine, or through the places between them.

    Args:
        hosts: the machine of each place.
        rates: bytes/s from each place to the next; empty if they are not known.

    Returns:
        the islands, each with its places in order; all places once.
    """
    count = len(hosts)
    island = list(range(count))
    joined = [(place, hosts.index(host)) for place, host in enumerate(hosts)]
    slowest = min(rates, default=WIRE_BYTES_PER_S)
    if slowest < WIRE_BYTES_PER_S and count > 2:
        joined += [(place, (place + 1) % count) for place, rate in enumerate(rates) if rate >= FASTER * slowest]
    for one, other in joined:
        old, new = island[one], island[other]
        island = [new if each == old else each for each in island]
    groups: dict[int, list[int]] = {}
    for place, number in enumerate(island):
        groups.setdefault(number, []).append(place)
    return tuple(tuple(group) for group in groups.values())


def block_for(rate: float, step_s: float) -> int:
    """Bytes of a block whose time on the wire is long against a ring's step: a power of two, 64 KB to 1 MB.

    Args:
        rate: of the slowest link (bytes/s).
        step_s: of a ring with next to no bytes: latency, and what Python takes.
    """
    size = _LEAST_BLOCK
    while size < _MOST_BLOCK and size < _OVER_STEP * rate * step_s:
        size *= 2
    return size


def probe(exchange: RingExchange, islands: tuple[tuple[int, ...], ...] = (), part: float = 1.0) -> LinkProbe:
    """Probes the links of an exchange; all of its ranks call it, while nothing else is exchanged.

    Args:
        exchange: connected, of at least 2 ranks.
        islands: places of the ring, where a search has found them.
        part: of the time and of the bytes that it has; :data:`AFTER_SEARCH` after a search.

    Raises:
        ExchangeError: a rank is lost.
        ValueError: there is but one rank.
    """
    if exchange.size < 2:
        raise ValueError(f"`exchange` must have at least 2 ranks to probe, got {exchange.size}")
    begun, count, place = time.perf_counter(), exchange.size, exchange.place
    look = _FirstLook()
    exchange.carry_out("probe: first look", look)
    latencies, first = gathered(exchange, place, [look.latency_s, look.rate])
    sizes = sizes_for(min(first), max(latencies), count, part)
    stream = Stream(sizes.streamed)
    exchange.carry_out("probe: streams", stream)
    # At once after the streams: a network that lets bursts through has none left.
    times = [_timed_sum(exchange, sizes.summed) for _ in range(_SUMS)]
    times += [_timed_sum(exchange, _SMALL_BYTES) for _ in range(sizes.small)]
    (rates,) = gathered(exchange, place, [stream.rate])
    ranks_times = gathered(exchange, place, times)
    # The least of all ranks: the one that came last waited for nobody.
    seconds = [min(each) for each in ranks_times]
    lengths = [sizes.summed] * _SUMS + [_SMALL_BYTES] * sizes.small
    step_s = min(seconds[_SUMS:]) / (2 * (count - 1))
    hosts = [exchange.hosts[rank] for rank in exchange.order]
    return LinkProbe(
        points=tuple((float(size), each) for size, each in zip(lengths, seconds, strict=True)),
        latencies_s=tuple(latencies), rates=tuple(rates), islands=islands or islands_of(hosts, rates),
        block_bytes=block_for(min(rates), step_s), took_s=time.perf_counter() - begun,
    )  # fmt: skip


class Stream:
    """Bytes to the next rank while as many come from the one before, some times over, and their rate."""

    def __init__(self, size: int, times: int = _STREAMS) -> None:
        self._size, self._times = size, times
        self.rate = 0.0

    def __call__(self, link: RingLink, moved: Moved) -> None:
        """Sends and receives, for :meth:`~stoker.train.ring.transport.RingExchange.carry_out`."""
        target, sent = memoryview(bytearray(self._size)), bytes(self._size)
        for number in range(self._times):
            answer = _Answer(link)
            begun = time.perf_counter()
            link.send(sent)
            link.receive(target[: self._size // 2])
            half = time.perf_counter()
            link.receive(target[self._size // 2 :])
            link.answer(_LATER_S.pack(time.perf_counter() - half))
            arrived, later_s = answer.wait()
            found = rate_of(self._size, arrived - begun, later_s)
            self.rate = max(self.rate, found) if number > 1 else found
            moved()


class _Answer:
    """What the next rank answers, and when: awaited by a thread, while this rank still receives over a slower link."""

    def __init__(self, link: RingLink) -> None:
        self._link = link
        self._data = memoryview(bytearray(_LATER_S.size))
        self._arrived_s = 0.0
        self._error: LinkBrokenError | None = None
        self._thread = threading.Thread(target=self._take, name="stoker-exchange-probe", daemon=True)
        self._thread.start()

    def _take(self) -> None:
        try:
            self._link.take_answer(self._data)
            self._arrived_s = time.perf_counter()
        except LinkBrokenError as error:
            self._error = error

    def wait(self) -> tuple[float, float]:
        """When it came, and the seconds in it."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._arrived_s, *_LATER_S.unpack(self._data)


class _FirstLook(Stream):
    """The way to the next rank and back, and a first rate."""

    def __init__(self) -> None:
        super().__init__(FIRST_BYTES)
        self.latency_s = 0.0

    def __call__(self, link: RingLink, moved: Moved) -> None:
        self.latency_s = min(_there_and_back(link) for _ in range(_PINGS)) / 2
        super().__call__(link, moved)


def _there_and_back(link: RingLink) -> float:
    """Seconds of a byte to the next rank and its answer, while the rank before does the same with this one."""
    byte = memoryview(bytearray(1))
    begun = time.perf_counter()
    link.send(b"?")
    link.receive(byte)
    link.answer(b"!")
    link.take_answer(byte)
    return time.perf_counter() - begun


def _timed_sum(exchange: RingExchange, size: int) -> float:
    data = torch.zeros(size // 4)
    begun = time.perf_counter()
    exchange.all_reduce(data, "probe: sum")
    return time.perf_counter() - begun


def gathered(exchange: RingExchange, place: int, facts: Sequence[float]) -> list[list[float]]:
    """Each fact of all places: sums of rows in which each place fills its own are the same bits everywhere."""
    rows = torch.zeros(len(facts), exchange.size, dtype=torch.float64)
    rows[:, place] = torch.tensor(facts, dtype=torch.float64)
    exchange.all_reduce(rows, "probe: facts")
    return [[float(fact) for fact in row] for row in rows]

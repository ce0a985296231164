"""Which ranks are close to each other where their machines do not say it: by the rates between many of them.

A ring in the ranks' order shows no island where these are placed in turns: each of its links goes from one island to
the next. So all ranks send at once to the next one but one, then to the one after that, and so on. Each rank's link
carries one stream each way at a time: within an island that has the whole rate, and streams between islands share it.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence

import torch

from stoker.train.ring.probe import FASTER, FIRST_BYTES, WIRE_BYTES_PER_S, Stream, gathered
from stoker.train.ring.transport import RingExchange

LEAST_RANKS = 4
"""Fewer make no islands of one size."""
_ALL_PAIRS = 8
"""Ranks of which all pairs are tried. Of more, those show each other that are in turns on machines of one size."""
_MOST_SHIFTS = 6
_MOST_BYTES, _SEARCH_S = 320 << 10, 0.12
_STREAM_BYTES = 72 << 10
"""Four ranks at a link then send several times what such a link lets through in a burst."""
_MUCH_FASTER = 8.0
"""Times the lowest tenth of the rates from which on they count as alike."""
_LEAST_EXPLAINED, _LEAST_IF_ALIKE = 0.6, 0.45
"""Share of the variation of rates that islands explain, and islands of one size, of which there are fewer. Of 28 rates
that vary by chance the best islands explained 0.35 in the median of 60 tries, and 0.52 at most."""

Islands = tuple[tuple[int, ...], ...]


def shifts_of(count: int) -> tuple[int, ...]:
    """To which ranks each one sends: so many places further. Ranks in turns on n machines meet theirs n places further.

    Args:
        count: of ranks.
    """
    if count < LEAST_RANKS:
        return ()
    if count <= _ALL_PAIRS:
        return tuple(range(1, count // 2 + 1))
    return (1, *(shift for shift in range(2, count // 2 + 1) if count % shift == 0))[:_MOST_SHIFTS]


def shift_rings(count: int, place: int) -> dict[str, list[int]]:
    """The rings that a rank is in, one for each shift, by name."""
    found: dict[str, list[int]] = {}
    for shift in shifts_of(count):
        ring = [place]
        while (then := (ring[-1] + shift) % count) != place:
            ring.append(then)
        found[_name(shift)] = ring
    return found


def islands_by_rates(count: int, rates: Mapping[tuple[int, int], float]) -> Islands:
    """Ranks in groups, so that pairs of one group have far higher rates than others.

    Single rates say little where other work disturbs them. So all of them count: groups are those that explain most of
    what rates vary by, as logarithms, and a fair part of it; else each rank is by itself. Groups are joined one by one,
    and then ranks are moved and exchanged between them as long as that explains more.

    Args:
        count: of ranks.
        rates: bytes/s of pairs of ranks, as many as were tried; of both directions the higher one counts.

    Returns:
        the islands, each with its ranks in order, by their first rank; all ranks once.
    """
    high: dict[tuple[int, int], float] = {}
    for (one, other), rate in rates.items():
        pair = (min(one, other), max(one, other))
        high[pair] = max(1.0, min(rate, WIRE_BYTES_PER_S), high.get(pair, 0.0))
    # By how much the highest differ says nothing: what is not limited by a link is so by processors, as they are free.
    most = _MUCH_FASTER * sorted(high.values())[len(high) // 10] if high else 1.0
    seen = _Seen(count, {pair: math.log(min(rate, most)) for pair, rate in sorted(high.items())})
    every = seen.joined()
    best = seen.improved(max(every, key=seen.explained)) if every else list(range(count))
    groups: dict[int, list[int]] = {}
    for rank, number in enumerate(best):
        groups.setdefault(number, []).append(rank)
    least = _LEAST_IF_ALIKE if len(set(map(len, groups.values()))) == 1 else _LEAST_EXPLAINED
    if seen.explained(best) < least or seen.apart(best) < math.log(FASTER):
        return tuple((rank,) for rank in range(count))
    return tuple(tuple(group) for group in groups.values())


class _Seen:
    """Rates of pairs, as logarithms. A grouping is the number of each rank's group."""

    def __init__(self, count: int, pairs: Mapping[tuple[int, int], float]) -> None:
        self._count = count
        self._pairs = [(one, other, rate) for (one, other), rate in pairs.items()]
        mean = sum(rate for *_, rate in self._pairs) / max(1, len(self._pairs))
        self._whole = sum((rate - mean) ** 2 for *_, rate in self._pairs)

    def explained(self, islands: Sequence[int]) -> float:
        """Share of the variation that is between pairs of one group and all others."""
        inside, across, difference = self._means(islands)
        if difference <= 0 or not self._whole:
            return 0.0
        return difference**2 * inside * across / (inside + across) / self._whole

    def apart(self, islands: Sequence[int]) -> float:
        """How much higher the rates within groups are than those across, in the mean of logarithms."""
        return self._means(islands)[2]

    def _means(self, islands: Sequence[int]) -> tuple[int, int, float]:
        inside = across = 0
        high = low = 0.0
        for one, other, rate in self._pairs:
            if islands[one] == islands[other]:
                inside, high = inside + 1, high + rate
            else:
                across, low = across + 1, low + rate
        return inside, across, high / inside - low / across if inside and across else 0.0

    def joined(self) -> list[list[int]]:
        """Groupings from single ranks on, each with the two groups joined whose pairs have the highest mean rate."""
        islands = list(range(self._count))
        found: list[list[int]] = []
        while True:
            sums: dict[tuple[int, int], tuple[float, int]] = {}
            for one, other, rate in self._pairs:
                a, b = sorted((islands[one], islands[other]))
                if a != b:
                    total, number = sums.get((a, b), (0.0, 0))
                    sums[a, b] = total + rate, number + 1
            if not sums:
                return found
            kept, gone = max(sums, key=lambda both: (sums[both][0] / sums[both][1], -both[0], -both[1]))
            islands = [kept if each == gone else each for each in islands]
            found.append(islands)

    def improved(self, islands: Sequence[int]) -> list[int]:
        """The grouping after moves of a rank, and exchanges of two, as long as each explains more."""
        best, share = list(islands), self.explained(islands)
        is_better = True
        while is_better:
            is_better = False
            for other in self._near(best):
                found = self.explained(other)
                if found > share + 1e-9:
                    best, share, is_better = other, found, True
                    break
        return best

    def _near(self, islands: list[int]) -> Iterator[list[int]]:
        for rank, number in itertools.product(range(self._count), sorted(set(islands))):
            if islands[rank] != number:
                yield [*islands[:rank], number, *islands[rank + 1 :]]
        for one, other in itertools.combinations(range(self._count), 2):
            if islands[one] != islands[other]:
                found = list(islands)
                found[one], found[other] = islands[other], islands[one]
                yield found


def search(exchange: RingExchange) -> Islands:
    """Finds the islands of an exchange that is connected with :func:`shift_rings`; all of its ranks call it.

    It sends 330 KB of each rank at most, and is to take 0.12 s. What is found is the same on all ranks.

    Raises:
        ExchangeError: a rank is lost.
    """
    shifts = shifts_of(exchange.size)
    if not shifts:
        return tuple((rank,) for rank in range(exchange.size))
    first = _rates(exchange, shifts[:1], FIRST_BYTES)
    size = stream_bytes(statistics.median(first.values()), len(shifts))
    return islands_by_rates(exchange.size, _rates(exchange, shifts, size))


def stream_bytes(rate: float, shifts: int) -> int:
    """Bytes of a stream, so that those of all shifts fit into the time and the bytes of a search.

    Args:
        rate: of the links of a ring through all ranks, their median (bytes/s).
        shifts: how many there are.
    """
    return int(max(FIRST_BYTES, min(_STREAM_BYTES, _MOST_BYTES / shifts, rate * _SEARCH_S / shifts)))


def _rates(exchange: RingExchange, shifts: Sequence[int], size: int) -> dict[tuple[int, int], float]:
    """The rates of all pairs that these shifts make."""
    count, own = exchange.size, list[float]()
    for shift in shifts:
        exchange.all_reduce(torch.zeros(1), "probe: all at once")
        stream = Stream(size, 1)
        exchange.carry_out(f"probe: {_name(shift)}", stream, ring=_name(shift))
        own.append(stream.rate)
    return {
        (rank, (rank + shift) % count): rate
        for shift, rates in zip(shifts, gathered(exchange, exchange.rank, own), strict=True)
        for rank, rate in enumerate(rates)
    }


def _name(shift: int) -> str:
    return f"shift {shift}"

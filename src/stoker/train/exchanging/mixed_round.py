# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# (torch.distributed is typed in part)
"""A backward pass whose buckets go different ways: gathers and sums start bucket by bucket, all else at its end.

Collectives start in the order of DDP's calls of its hook, alike on all ranks. What the gathered headers decide, sums
of doubted layers, starts at the last bucket, in the buckets' order: never from a callback, where ranks would differ.
Products follow the last bucket too, while later transfers are under way. All ranks multiply the same gathered rows in
the same order, so that their results are the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.distributed as dist

from stoker.core.errors import ExchangeError
from stoker.train.exchanging.checking import is_product
from stoker.train.exchanging.compressed import HalvedSum, LowRankSum
from stoker.train.exchanging.factors import FactoredLayer
from stoker.train.exchanging.layout import BucketLayout
from stoker.train.exchanging.payload import Doubt, GatheredPayload, GatheredSegment, Header
from stoker.train.exchanging.rows import add_rows, filled_rows
from stoker.train.exchanging.standing import LayerStanding
from stoker.train.program.lookouts import words_of
from stoker.train.ring.watching.blame import RankFault


class RingReducer(Protocol):
    """Sums over all ranks by other means than the backend's."""

    def start(self, flat: torch.Tensor, name: str) -> torch.futures.Future[torch.Tensor]:
        """Begins to sum a tensor in place over all ranks; sums are made one by one in the order of the calls."""
        ...


@dataclass(slots=True)
class _Sum:
    """Parts of a bucket that are summed together."""

    flat: torch.Tensor
    targets: list[torch.Tensor]
    """Where the sums go; empty where the parts were summed in place."""
    wait: Callable[[], object]
    name: str
    """The first weight that it holds."""
    half: HalvedSum | None = None
    """The scale of a sum in 16 bits; it may go in more of them in its first steps."""


@dataclass(slots=True)
class _Pending:
    """A bucket that is under way."""

    buffer: torch.Tensor
    layout: BucketLayout
    done: torch.futures.Future[torch.Tensor]
    payload: GatheredPayload | None = None
    own: torch.Tensor | None = None
    gathered: torch.Tensor | None = None
    gather: Any = None
    sums: list[_Sum] = field(default_factory=list["_Sum"])
    left: _Sum | None = None
    """Left factors of all weights of low rank."""
    right: tuple[_Sum, list[int]] | None = None
    """Right factors of those of them that stay thin in this step, and their places."""
    filled: dict[int, torch.Tensor] = field(default_factory=dict[int, torch.Tensor])
    """Numbers of a table's own rows, by the segment's place."""


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What became of a backward pass.

    Attributes:
        bytes: of payloads and sums, before the collectives multiply them.
        gathered_bytes, summed_bytes: its parts.
        weights: hashes of all ranks' weights, 0 of one that has none to compare; empty if none were asked for.
    """

    gathered_bytes: int
    summed_bytes: float
    weights: tuple[int, ...]


class MixedRound:
    """The buckets of one backward pass.

    Args:
        group: of the replicas.
        layers: that capture factors, by the names of their weights.
        standings: of gathered layers, by the names of their weights.
        draw: random numbers of mean square 1, so many on a device.
        ring: sums ``ring``, and ``islands`` without ``islands``; None for the backend.
        islands: sums ``islands``.
        weights: hash of the weights, to be compared, 0 where this rank has none; None where no rank compares.
        scale: what sums are multiplied by; by default that of a mean over all ranks.
        step: its number, for errors.
        halves: scales of sums in 16 bits, by the name of a sum's first weight; new ones are added.
        thin: of weights whose sums are of low rank, by their names.
        ask: who is lost, where a collective of the backend has failed.
    """

    def __init__(
        self, group: Any, layers: Mapping[str, FactoredLayer], standings: Mapping[str, LayerStanding],
        draw: Callable[[int, torch.device], torch.Tensor], *, ring: RingReducer | None = None,
        islands: RingReducer | None = None, weights: int | None = None, scale: float | None = None, step: int = 0,
        halves: dict[str, HalvedSum] | None = None, thin: Mapping[str, LowRankSum] | None = None,
        ask: Callable[[], RankFault | None] = lambda: None,
    ) -> None:  # fmt: skip
        self._group, self._layers, self._standings, self._draw = group, layers, standings, draw
        self._rings = {"ring": ring, "islands": islands or ring}
        self._weights, self._step, self._ask = weights, step, ask
        self._halves, self._thin = {} if halves is None else halves, thin or {}
        self._ranks = dist.get_world_size(group)
        self._scale = 1.0 / self._ranks if scale is None else scale
        self._pending: list[_Pending] = []
        self._gathered_bytes = 0
        self._summed_bytes = 0.0

    def add(self, buffer: torch.Tensor, layout: BucketLayout) -> torch.futures.Future[torch.Tensor]:
        """Starts what a bucket sends; its future is done by :meth:`finish`."""
        found = _Pending(buffer, layout, future_of(buffer))
        self._pending.append(found)
        if layout.segments:
            self._start_gather(found)
        if layout.thin:
            self._start_left(found)
        for way, ranges in layout.sums.items():
            found.sums.append(self._start_sum(buffer, ranges, way, layout.firsts[way]))
        return found.done

    def finish(self) -> RoundResult:
        """Waits for all buckets, sums what is doubted, multiplies and adds, and completes the futures."""
        hashes: tuple[int, ...] = ()
        agreed: list[list[list[Header]]] = []
        for found in self._pending:
            headers = self._headers(found)
            agreed.append(headers)
            for segment, own in zip(found.layout.segments, headers, strict=True):
                told = tuple(header.weights for header in own)
                hashes = hashes or (told if any(told) else ())
                if not self._standings[segment.name].read(own):
                    self._layers_drop(segment)
                    ranges = ((segment.start, segment.stop),)
                    found.sums.append(self._start_sum(found.buffer, ranges, "all_reduce", segment.name))
                    continue
        for found in self._pending:
            if found.left is not None:
                self._start_right(found)
        if self._weights is not None and self._pending:
            hashes = self._gathered_hashes(self._weights)
        for found, headers in zip(self._pending, agreed, strict=True):
            for place, own in enumerate(headers):
                if all(header.doubt is Doubt.NONE for header in own):
                    self._fill(found, place, own)
        for found in self._pending:
            for each in found.sums:
                self._settle(each)
            if found.right is not None:
                self._fill_thin(found, *found.right)
            found.done.set_result(found.buffer)
        self._pending.clear()
        return RoundResult(self._gathered_bytes, self._summed_bytes, hashes)

    def _layers_drop(self, segment: GatheredSegment) -> None:
        layer = self._layers.get(segment.name)
        if layer is not None:
            layer.drop()

    def _start_gather(self, found: _Pending) -> None:
        payload = found.payload = GatheredPayload(found.layout.segments, found.buffer.device)
        found.own = payload.empty()
        for place, segment in enumerate(payload.segments):
            header, parts = self._part(found, place, segment)
            payload.write(found.own, place, header, parts)
        found.gathered = torch.empty(
            self._ranks, payload.bytes, dtype=torch.uint8, device=found.buffer.device
        )  # fmt: skip
        found.gather = dist.all_gather(
            list(found.gathered.unbind(0)), found.own, group=self._group, async_op=True
        )  # fmt: skip
        self._gathered_bytes += payload.bytes

    def _part(self, found: _Pending, place: int, segment: GatheredSegment) -> tuple[Header, Sequence[torch.Tensor]]:
        """What this rank sends of a segment. Whatever fails here is a doubt: the others must not wait in vain."""
        gradient = found.buffer[segment.start : segment.stop].view(segment.shape)
        try:
            rows, doubt, parts = self._rows(gradient, found, place, segment) if segment.method == "rows" else (
                self._factors(gradient, segment)
            )  # fmt: skip
        except Exception:
            rows, doubt, parts = 0, Doubt.FAILED, ()
        weights, self._weights = self._weights, None
        return Header(rows=rows, doubt=doubt, weights=weights or 0), () if doubt else parts

    def _rows(
        self, gradient: torch.Tensor, found: _Pending, place: int, segment: GatheredSegment
    ) -> tuple[int, Doubt, Sequence[torch.Tensor]]:
        numbers = filled_rows(gradient)
        rows = numbers.shape[0]
        if rows > segment.room:
            return rows, Doubt.ROWS, ()
        found.filled[place] = numbers
        return rows, Doubt.NONE, (numbers, gradient.index_select(0, numbers))

    def _factors(self, gradient: torch.Tensor, segment: GatheredSegment) -> tuple[int, Doubt, Sequence[torch.Tensor]]:
        try:
            taken = self._layers[segment.name].take()
        except OverflowError as error:
            return int(error.args[0]), Doubt.ROWS, ()
        left, right = taken or (gradient.new_zeros(0, segment.shape[0]), gradient.new_zeros(0, segment.shape[1]))
        rows = left.shape[0]
        if rows > segment.room:
            return rows, Doubt.ROWS, ()
        if rows and torch.promote_types(left.dtype, segment.factor_type) != segment.factor_type:
            return rows, Doubt.TYPE, ()
        if not is_product(gradient, left, right, self._draw(segment.shape[1], gradient.device)):
            return rows, Doubt.PRODUCT, ()
        return rows, Doubt.NONE, (left, right)

    def _start_sum(self, buffer: torch.Tensor, ranges: Sequence[tuple[int, int]], way: str, name: str) -> _Sum:
        parts = [buffer[start:stop] for start, stop in ranges]
        half = None
        if way == "half" and buffer.dtype in (torch.float32, torch.float64):
            half = self._halves.setdefault(name, HalvedSum())
            narrowed = half.narrowed(parts, self._scale)
            if narrowed is not None:
                return _Sum(narrowed, parts, self._summed(narrowed), name, half)
        if len(parts) == 1:
            flat, targets = parts[0], []
        else:
            flat, targets = torch.cat(parts), parts
        flat.mul_(self._scale)
        ring = self._rings.get(way)
        if ring is not None:
            self._summed_bytes += flat.nbytes
            return _Sum(flat, targets, ring.start(flat, name).wait, name)
        return _Sum(flat, targets, self._summed(flat), name, half)

    def _summed(self, flat: torch.Tensor) -> Callable[[], object]:
        """Begins a sum by the backend; what is returned waits for it."""
        self._summed_bytes += flat.nbytes
        work: Any = dist.all_reduce(flat, group=self._group, async_op=True)
        return work.wait

    def _settle(self, each: _Sum) -> None:
        """Waits for a sum, and puts it where it belongs."""
        wait_for(each.wait, each.name, self._step, self._ask)
        half = each.half
        if half is not None and each.flat.dtype == torch.float16 and each.targets:
            if half.widen(each.flat, each.targets):
                return
            # The same on all ranks, since they have the same sums: now in the gradients' own type.
            each.flat = torch.cat(each.targets).mul_(self._scale)
            wait_for(self._summed(each.flat), each.name, self._step, self._ask)
            half.overflowed(each.flat)
        elif half is not None:
            half.first(each.flat)
        _spread(each.flat, each.targets)

    def _start_left(self, found: _Pending) -> None:
        with torch.autocast(found.buffer.device.type, enabled=False):
            parts = [
                self._thin[segment.name].left(found.buffer[segment.start : segment.stop].view(segment.shape))
                for segment in found.layout.thin
            ]
        flat = torch.cat([part.flatten() for part in parts]).mul_(self._scale)
        found.left = _Sum(flat, parts, self._summed(flat), found.layout.thin[0].name)

    def _start_right(self, found: _Pending) -> None:
        """Starts the sums of right factors; weights whose left ones are not finite are summed whole."""
        assert found.left is not None
        wait_for(found.left.wait, found.left.name, self._step, self._ask)
        parts: list[torch.Tensor] = []
        places: list[int] = []
        for place, (segment, left) in enumerate(zip(found.layout.thin, _parts(found.left), strict=True)):
            with torch.autocast(left.device.type, enabled=False):
                right = self._thin[segment.name].right(left.view(segment.shape[0], -1))
            if right is None:
                ranges = ((segment.start, segment.stop),)
                found.sums.append(self._start_sum(found.buffer, ranges, "all_reduce", segment.name))
            else:
                parts.append(right)
                places.append(place)
        if parts:
            flat = torch.cat([part.flatten() for part in parts]).mul_(self._scale)
            found.right = _Sum(flat, parts, self._summed(flat), found.layout.thin[0].name), places

    def _fill_thin(self, found: _Pending, sums: _Sum, places: Sequence[int]) -> None:
        wait_for(sums.wait, sums.name, self._step, self._ask)
        for place, right in zip(places, _parts(sums), strict=True):
            segment = found.layout.thin[place]
            with torch.autocast(right.device.type, enabled=False):
                gradient = found.buffer[segment.start : segment.stop].view(segment.shape)
                self._thin[segment.name].fill(gradient, right.view(segment.shape[1], -1))

    def _gathered_hashes(self, weights: int) -> tuple[int, ...]:
        """The hashes of all ranks' weights, where no header carried them."""
        own = torch.tensor([weights], dtype=torch.int64, device=self._pending[0].buffer.device)
        every = [torch.zeros_like(own) for _ in range(self._ranks)]
        dist.all_gather(every, own, group=self._group)
        return tuple(int(each) for each in every)

    def _headers(self, found: _Pending) -> list[list[Header]]:
        if found.payload is None or found.gathered is None:
            return []
        wait_for(found.gather.wait, found.layout.segments[0].name, self._step, self._ask)
        return found.payload.headers(found.gathered)

    def _fill(self, found: _Pending, place: int, headers: Sequence[Header]) -> None:
        """Puts the mean of all ranks' gradients in the place of this rank's own."""
        assert found.payload is not None
        assert found.gathered is not None
        segment = found.payload.segments[place]
        gradient = found.buffer[segment.start : segment.stop].view(segment.shape)
        parts = [
            found.payload.read(memory, place, header.rows)
            for memory, header in zip(found.gathered.unbind(0), headers, strict=True)
        ]
        if segment.method == "rows":
            add_rows(gradient, found.filled[place], [(part[0].flatten(), part[1]) for part in parts], self._scale)
            return
        wide = torch.float64 if gradient.dtype == torch.float64 else torch.float32
        left, right = (torch.cat([part[side] for part in parts]).to(wide) for side in (0, 1))
        with torch.autocast(gradient.device.type, enabled=False):
            if gradient.dtype == wide:
                gradient.addmm_(left.t(), right, beta=0, alpha=self._scale)
            else:
                gradient.copy_(torch.mm(left.t(), right).mul_(self._scale))


def wait_for(
    wait: Callable[[], object], layer: str, step: int, ask: Callable[[], RankFault | None] = lambda: None
) -> None:
    """Waits for a collective.

    Args:
        wait: until it is done.
        layer: first weight of what it exchanges.
        step: number of the exchange.
        ask: who is lost, if it fails.

    Raises:
        ExchangeError: it failed, which the backend says without their names.
    """
    try:
        wait()
    except ExchangeError:
        raise
    except RuntimeError as error:
        fault = ask()
        rank = {} if fault is None else {"rank": fault.rank}
        raise ExchangeError(
            f"`{layer}` must be exchanged with all ranks in step {step}, and {words_of(fault)}: {error}; start the "
            "program again from its last checkpoint", layer=layer, step=step, **rank,
        ) from error  # fmt: skip


def _parts(each: _Sum) -> list[torch.Tensor]:
    """The sum of each of its parts, flat."""
    return list(torch.split(each.flat, [part.numel() for part in each.targets]))


def _spread(flat: torch.Tensor, targets: Sequence[torch.Tensor]) -> None:
    at = 0
    for target in targets:
        target.copy_(flat[at : at + target.shape[0]])
        at += target.shape[0]


def future_of(buffer: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    """A future of DDP's for a bucket, to be completed on the device of its buffer."""
    if buffer.is_cuda:
        return torch.futures.Future(devices=[buffer.device])
    return torch.futures.Future()

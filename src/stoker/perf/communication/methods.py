"""The ways in which one layer's gradients can be exchanged, with their bytes and seconds in closed form.

All-reduces send 2(P - 1)/P of the gradient, however they are made. Late-multiply gathers what the gradient is a product
of, K rows of its layer's input and of its output's gradient, and multiplies then: (P - 1) K (M + N), exact. A table's
gradient *is* its non-zero rows. Splits exchange activations instead of gradients. Source: Poseidon (arXiv 1706.03292)
for the bytes of factors, where we charge the repeated product too; Krizhevsky (arXiv 1404.5997) for splits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from stoker.perf.communication.collectives import (
    Group,
    all_gather,
    all_reduce,
    all_to_all,
    between_servers,
    hierarchical,
    within_servers,
)
from stoker.perf.communication.cost import NOTHING, ExchangeCost, after
from stoker.perf.communication.replicas import Sent, Ways
from stoker.records.exchange import POWER_RANK

Method = Literal["all_reduce", "ring", "islands", "late", "rows", "column", "row", "table", "half", "power"]
METHODS: tuple[Method, ...] = get_args(Method)
Leave = Literal["split", "compress"]
LEAVES: tuple[Leave, ...] = get_args(Leave)
NEEDS: dict[Method, Leave] = {
    "column": "split",
    "row": "split",
    "table": "split",
    "half": "compress",
    "power": "compress",
}
"""Methods that change sums, or what the optimizer sees, beyond rounding: only with the user's leave."""
ID_BYTES = 8
"""The number of a table's row."""
_RING_BYTES_PER_S = 1e9
"""Most that a ring in Python sends a second (assumed)."""
_RING_GAIN, _RING_START_S = 1.01, 1e-3
"""Gain of a ring of blocks over gloo's, 1 to 8 MB at 200 Mbit/s on 2 to 8 ranks: 0.97 to 0.99 of the time, as measured.
Its start is assumed: below a megabyte nothing was measured."""
_ISLANDS_IDLE = 0.4
"""Share of the shorter stages of a sum by islands that the longer one does not hide: 2 MB by 2 islands of 4 ranks took
195 ms, where links of 400 Mbit/s inside take 63 and the one of 100 Mbit/s between takes 168."""
_NO_ROOM = "the error that it keeps takes more memory than is left"


@dataclass(frozen=True, slots=True)
class RankSpeed:
    """How fast a rank computes.

    Attributes:
        product: seconds of a product of sizes m x k and k x n, called with m, n, k.
        byte_s: seconds to read or write a byte of its memory.
    """

    product: Callable[[int, int, int], float]
    byte_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientLayer:
    """What a layer exchanges, and what its gradients are made of.

    Attributes:
        module: path.
        bytes: of its gradients as DDP sends them.
        product_bytes: of them that are one product, of ``rows`` rows of ``width_in`` and of ``width_out``.
        factor_bytes: of each element of the factors.
        lookups: rows of a table that a rank looks up, each of ``width_out`` elements; ``table_rows`` it has.
        asked: the same with each row as often as it is looked up; 0 where that is what ``lookups`` counts.
        fed_by: place of the layer whose output is its input, element by element; -1 where that is not known.
        why_not: why it is neither a product nor a table.
        unsplit: why its weights may not be split in one of the ways, by that way.
    """

    module: str
    bytes: float
    product_bytes: float = 0.0
    rows: int = 0
    width_in: int = 0
    width_out: int = 0
    factor_bytes: int = 4
    lookups: int = 0
    table_rows: int = 0
    asked: int = 0
    fed_by: int = -1
    why_not: str = ""
    unsplit: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def element_bytes(self) -> float:
        """Bytes of an element of the gradient."""
        return self.product_bytes / (self.width_in * self.width_out) if self.width_in * self.width_out else 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What holds for all layers of a step.

    Attributes:
        speed: of each rank.
        allowed: what the user gives leave to.
        memory_bytes: most that gathered factors may take on a rank, of all layers together.
        unsafe: why a split would change the training, such as norms over whole gradients; empty if nothing is known.
        chained: whether any two splits that follow each other leave their activations split in between; otherwise a
            column split and a row split alone.
    """

    group: Group
    speed: RankSpeed
    allowed: frozenset[Leave] = frozenset()
    memory_bytes: float = float("inf")
    unsafe: str = ""
    chained: bool = True

    def stays(self, before: str, behind: str) -> bool:
        """Whether nothing is exchanged between two splits of which one feeds the other."""
        return self.chained or (before == "column" and behind == "row")


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodOption:
    """One way for one layer.

    Attributes:
        sent: gradients, as the step's simulation takes them.
        bytes: that a rank sends for them, activations included.
        transfer: the exchange by itself.
        work_s: computation that it adds.
        memory_bytes: that it holds until the backward pass is over.
        activations: exchanged while nothing is computed, wherever the neighbours are.
        enter, leave: further ones, where the layer before or behind is not split as well; and their bytes.
        barred: why it may not be taken; empty if it may.
    """

    method: Method
    sent: Sent
    bytes: float
    transfer: ExchangeCost
    work_s: float = 0.0
    memory_bytes: float = 0.0
    activations: ExchangeCost = NOTHING
    enter: ExchangeCost = NOTHING
    leave: ExchangeCost = NOTHING
    enter_bytes: float = 0.0
    leave_bytes: float = 0.0
    barred: str = ""

    @property
    def seconds(self) -> float:
        """Exchange and added work, as if nothing overlapped."""
        return self.transfer.seconds + self.work_s


def ring(group: Group, size_bytes: float) -> ExchangeCost:
    """An all-reduce over stoker's sockets, block by block: gloo's ring without its waits, at the pace of Python."""
    cost = all_reduce(_in_python(group, _RING_BYTES_PER_S / _RING_GAIN), size_bytes)
    if not cost.seconds:
        return NOTHING
    seconds = cost.seconds / _RING_GAIN + _RING_START_S
    scale = seconds / cost.seconds
    return ExchangeCost(seconds, cost.low * scale, cost.high * scale, cost.basis, f"{cost.note}, block by block")


def by_islands(group: Group, size_bytes: float) -> ExchangeCost:
    """An all-reduce over stoker's sockets within islands and across them, blocks one behind the other."""
    own = _in_python(group, _RING_BYTES_PER_S)
    if group.nodes == 1 or group.local == 1 or size_bytes <= 0:
        return hierarchical(own, size_bytes)
    inside, between = within_servers(own, size_bytes), between_servers(own, size_bytes)
    both = after((inside, between))
    longer, shorter = max(inside.seconds, between.seconds), min(inside.seconds, between.seconds)
    seconds = longer + _ISLANDS_IDLE * shorter + _RING_START_S
    scale = seconds / both.seconds
    note = f"{both.note}, blocks one behind the other"
    return ExchangeCost(seconds, min(seconds, max(inside.low, between.low)), both.high * scale, both.basis, note)


def _in_python(group: Group, rate: float) -> Group:
    """The links at the pace of Python, and not as the backend uses them."""
    return replace(group, fabric=group.fabric.at_most(rate), network=group.network.at_most(rate), flat=None)


def half(group: Group, size_bytes: float) -> ExchangeCost:
    """An all-reduce of numbers of 16 bits."""
    return all_reduce(group, size_bytes / 2)


WAYS: Ways = {"all_reduce": all_reduce, "ring": ring, "islands": by_islands, "half": half}


def ring_bytes(ranks: int, size_bytes: float) -> float:
    """Bytes that a rank sends for an all-reduce."""
    return 2 * (ranks - 1) / ranks * size_bytes


def late_bytes(ranks: int, rows: int, widths: int, element_bytes: float = 4) -> float:
    """Bytes that a rank sends of its factors: ``rows`` rows of ``widths`` elements, both factors together."""
    return (ranks - 1) * rows * widths * element_bytes


def rows_bytes(ranks: int, rows: int, width: int, element_bytes: float = 4) -> float:
    """Bytes that a rank sends of a table's rows, with their numbers."""
    return (ranks - 1) * rows * (width * element_bytes + ID_BYTES)


def table_bytes(ranks: int, lookups: int, width: int, element_bytes: float = 4) -> float:
    """Bytes that a rank sends where a table is split: numbers of rows, the rows, and their gradients."""
    return (ranks - 1) / ranks * lookups * (2 * width * element_bytes + ID_BYTES)


def options(layer: GradientLayer, terms: Terms) -> list[MethodOption]:
    """All ways for a layer, the backend's all-reduce first; barred ones among them."""
    return [*_sums(layer, terms), *_products(layer, terms), *_tables(layer, terms)]


def _sums(layer: GradientLayer, terms: Terms) -> Iterator[MethodOption]:
    group = terms.group
    barred: dict[Method, str] = {
        "ring": "" if group.backend == "gloo" else "runs over sockets: NCCL's own rings carry the tensors of GPUs",
        "islands": "" if group.backend == "gloo" else "NCCL's all-reduce exchanges within servers first already",
        "half": _leave("half", terms),
    }
    if group.nodes == 1 or group.local == 1:
        barred["islands"] = "all ranks are one island" if group.nodes == 1 else "each rank is an island by itself"
    ways: tuple[Method, ...] = ("all_reduce", "ring", "islands", "half")
    for method in ways:
        # Gradients are read, sums written twice and read once, in 32 bits; five passes over 16 bits count half.
        work = 5 * layer.bytes * terms.speed.byte_s if method == "half" else 0.0
        sent = layer.bytes / 2 if method == "half" else layer.bytes
        yield MethodOption(
            method=method, sent=Sent(layer.bytes, method, work_s=work), bytes=ring_bytes(group.size, sent),
            transfer=WAYS[method](group, layer.bytes), work_s=work, barred=barred.get(method, ""),
        )  # fmt: skip


def _products(layer: GradientLayer, terms: Terms) -> Iterator[MethodOption]:
    if not layer.product_bytes:
        return
    yield _late(layer, terms)
    yield _power(layer, terms)
    group, ranks, rest = terms.group, terms.group.size, layer.bytes - layer.product_bytes
    rows, size = layer.rows, layer.factor_bytes
    m, n = layer.width_in, layer.width_out
    # Inputs are gathered and their gradients scattered, or outputs scattered and their gradients gathered.
    inward, outward = (all_reduce(group, ranks * rows * width * size) for width in (m, n))
    moved_in, moved_out = (all_to_all(group, rows * width * size).times(2) for width in (m, n))
    gathered = 2 * (ranks - 1) * rows * size
    turned = gathered / ranks
    yield MethodOption(
        method="column", sent=Sent(0.0), bytes=gathered * m, transfer=inward, activations=inward, leave=moved_out,
        leave_bytes=turned * n, barred=_unsplit("column", layer, terms),
    )  # fmt: skip
    yield MethodOption(
        method="row", sent=Sent(rest), bytes=gathered * n + ring_bytes(ranks, rest),
        transfer=after((outward, all_reduce(group, rest))), activations=outward, enter=moved_in,
        enter_bytes=turned * m, barred=_unsplit("row", layer, terms),
    )  # fmt: skip


def _late(layer: GradientLayer, terms: Terms) -> MethodOption:
    group, speed = terms.group, terms.speed
    ranks, rows, m, n = group.size, layer.rows, layer.width_in, layer.width_out
    rest = layer.bytes - layer.product_bytes
    factors = rows * (m + n) * layer.factor_bytes
    gathered = all_gather(group, factors * ranks)
    # The joint product comes on top of the rank's own, which the factors are checked against: a pass over it.
    work = speed.product(m, n, ranks * rows) + layer.product_bytes * speed.byte_s if ranks > 1 else 0.0
    memory = float(ranks * factors)
    barred = "" if memory <= terms.memory_bytes else "its factors take more memory than is left"
    return MethodOption(
        method="late", sent=Sent(rest, own=gathered, work_s=work),
        bytes=late_bytes(ranks, rows, m + n, layer.factor_bytes) + ring_bytes(ranks, rest),
        transfer=after((gathered, all_reduce(group, rest))), work_s=work, memory_bytes=memory, barred=barred,
    )  # fmt: skip


def _power(layer: GradientLayer, terms: Terms) -> MethodOption:
    group, speed, m, n = terms.group, terms.speed, layer.width_in, layer.width_out
    rest = layer.bytes - layer.product_bytes
    rank = min(POWER_RANK, m, n)
    factors = rank * (m + n) * layer.element_bytes
    reduced = all_reduce(group, factors)
    # Two products onto the factors, one back; the error that is fed back is read and written.
    work = speed.product(m, rank, n) + speed.product(n, rank, m) + speed.product(m, n, rank)
    work += 3 * layer.product_bytes * speed.byte_s
    return MethodOption(
        method="power", sent=Sent(rest, own=reduced, work_s=work), bytes=ring_bytes(group.size, factors + rest),
        transfer=after((reduced, all_reduce(group, rest))), work_s=work, memory_bytes=layer.product_bytes,
        barred=_leave("power", terms) or ("" if layer.product_bytes <= terms.memory_bytes else _NO_ROOM),
    )  # fmt: skip


def _tables(layer: GradientLayer, terms: Terms) -> Iterator[MethodOption]:
    if not layer.lookups:
        return
    group, ranks, width = terms.group, terms.group.size, layer.width_out
    rows = min(layer.lookups, layer.table_rows)
    payload = rows * (width * 4 + ID_BYTES)
    gathered = all_gather(group, payload * ranks)
    # The table's zeros are read to find the rows; those of all ranks are added: read, read, written.
    work = (layer.bytes + 3 * ranks * payload) * terms.speed.byte_s if ranks > 1 else 0.0
    yield MethodOption(
        method="rows", sent=Sent(0.0, own=gathered, work_s=work), bytes=rows_bytes(ranks, rows, width),
        transfer=gathered, work_s=work, memory_bytes=float(ranks * payload),
        barred="" if ranks * payload <= terms.memory_bytes else "its rows take more memory than is left",
    )  # fmt: skip
    asked = layer.asked or layer.lookups
    moved = after((all_to_all(group, asked * ID_BYTES), all_to_all(group, asked * width * 4).times(2)))
    yield MethodOption(
        method="table", sent=Sent(0.0), bytes=table_bytes(ranks, asked, width), transfer=moved, activations=moved,
        barred=_unsplit("table", layer, terms),
    )  # fmt: skip


def _unsplit(method: Method, layer: GradientLayer, terms: Terms) -> str:
    return _leave(method, terms) or terms.unsafe or layer.unsplit.get(method, "")


def _leave(method: Method, terms: Terms) -> str:
    leave = NEEDS[method]
    return "" if leave in terms.allowed else f"not allowed (--comm-allow {leave})"

"""A plan from what ranks measured of their own steps."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from stoker.perf.communication.methods import Leave
from stoker.perf.planning.measured_exchange import planned_exchange
from stoker.records.exchange import LOSSY, MeasuredExchange, MeasuredLayer, ProbedLinks

RATE = 25e6
"""Bytes/s of the link: 200 Mbit/s."""
HEAD = MeasuredLayer(
    module="head", weight="head.weight", bytes=16.8e6, product_bytes=16.8e6, width_in=2048, width_out=2048, rows=16,
    backward_s=0.002,
)  # fmt: skip
TRUNK = MeasuredLayer(module="trunk", weight="", bytes=8e6, backward_s=0.004, why_not="it is no product")


def measured(layers: list[MeasuredLayer], device: str = "cpu", ranks: int = 2) -> list[MeasuredExchange]:
    """What ranks say of a program on a slow link."""
    sums = [(float(size), 2e-4 + 2 * (ranks - 1) / ranks * size / RATE) for size in (4_096, 65_536, 1 << 20, 16 << 20)]
    return [
        MeasuredExchange(
            name="toy", rank=rank, ranks=ranks, backend="gloo", device=device, step_s=1.0, layers=layers, sums=sums,
            products=[(2048, 2048, 16 * ranks, 0.01)], byte_s=1e-10, memory_bytes=1e9,
        )
        for rank in range(ranks)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("device", "has_ring", "methods"),
    [
        ("cpu", True, {"head": "late", "trunk": "ring"}),
        ("cpu", False, {"head": "late"}),
        ("cuda", True, {"head": "late"}),
    ],
)
def test_a_ring_is_named_where_there_are_sockets_for_its_tensors(
    device: str, has_ring: bool, methods: dict[str, str]
) -> None:
    agreed = planned_exchange(measured([TRUNK, HEAD], device), has_ring=has_ring)
    assert {each.module: each.method for each in agreed.methods} == methods


WIDE = MeasuredLayer(
    module="wide", weight="wide.weight", bytes=4.0 * 64 * 262144, product_bytes=4.0 * 64 * 262144, width_in=64,
    width_out=262144, rows=64, backward_s=0.002, splits=["column", "row"],
)  # fmt: skip
NARROW = replace(WIDE, module="narrow", weight="narrow.weight", width_in=262144, width_out=64, fed_by="wide")
TABLE = MeasuredLayer(
    module="words", weight="words.weight", bytes=64e6, table_rows=1_000_000, width_out=16, rows=100, lookups=60_000,
    splits=["table"],
)  # fmt: skip
SPLIT = frozenset[Leave]({"split"})


def chosen(layers: list[MeasuredLayer], ranks: int = 2) -> dict[str, str]:
    agreed = planned_exchange(measured(layers, ranks=ranks), allowed=SPLIT)
    return {each.module: each.method for each in agreed.methods}


def test_splits_need_leave_and_layers_that_were_seen_to_bear_them() -> None:
    assert chosen([TRUNK, WIDE, NARROW]) == {"wide": "column", "narrow": "row"}
    assert not planned_exchange(measured([TRUNK, WIDE, NARROW])).methods
    unseen = [TRUNK, replace(WIDE, splits=[], unsplit="it has hooks"), replace(NARROW, splits=[])]
    agreed = planned_exchange(measured(unseen), allowed=SPLIT)
    assert not agreed.methods
    assert agreed.report is not None
    reasons = {layer.module: {each.method: each.reason for each in layer.rejected} for layer in agreed.report.layers}
    assert reasons["wide"]["column"] == reasons["wide"]["row"] == "it has hooks"
    assert reasons["narrow"]["row"] == "its weights were not seen in a way that a split keeps"


def test_a_layer_that_one_rank_may_not_split_is_split_by_none() -> None:
    first, second = measured([TRUNK, WIDE, NARROW])
    other = [each if each.module != "wide" else replace(each, splits=["row"], unsplit="odd") for each in second.layers]
    agreed = planned_exchange([first, replace(second, layers=other)], allowed=SPLIT)
    assert not agreed.methods


def test_activations_of_a_pair_are_priced_once_and_those_of_other_splits_between_them() -> None:
    """8 (P - 1) K (M + N) bytes of a pair; a column split by itself turns its outputs back, which takes N/P more."""
    agreed = planned_exchange(measured([TRUNK, WIDE, NARROW]), allowed=SPLIT)
    assert agreed.report is not None
    sent = {layer.module: layer.bytes for layer in agreed.report.layers}
    assert sent["wide"] == sent["narrow"] == 8 * 64 * 64
    few = replace(WIDE, rows=16, splits=["column"])
    alone = planned_exchange(measured([TRUNK, few], ranks=4), allowed=SPLIT)
    assert alone.report is not None
    assert {layer.module: layer.bytes for layer in alone.report.layers}["wide"] == 8 * 3 * 16 * (64 + 262144 / 4)


def test_a_table_is_split_by_what_is_looked_up_and_not_by_the_rows_that_differ() -> None:
    agreed = planned_exchange(measured([TRUNK, replace(TABLE, lookups=120)]), allowed=SPLIT)
    assert agreed.report is not None
    table = agreed.report.layers[-1]
    others = {each.method: each.bytes for each in table.rejected} | {table.method: table.bytes}
    assert others["table"] == 8 * 120 * 17 / 2
    assert others["rows"] == 100 * 72


def test_a_plan_leaves_ddp_a_weight() -> None:
    small = replace(NARROW, module="small", weight="small.weight", bytes=4e6, product_bytes=4e6, width_in=15625)
    assert chosen([WIDE, NARROW, replace(small, fed_by="")], ranks=4) == {"wide": "column", "narrow": "row"}


def test_what_is_not_exact_needs_leave() -> None:
    for allowed in (frozenset[Leave](), frozenset[Leave]({"split"})):
        agreed = planned_exchange(measured([TRUNK, HEAD]), allowed=allowed, has_ring=True)
        assert not {each.method for each in agreed.methods} & set(LOSSY)
        assert agreed.report is not None
        reasons = {other.method: other.reason for layer in agreed.report.layers for other in layer.rejected}
        assert all(reasons[method] == "not allowed (--comm-allow compress)" for method in LOSSY)
    agreed = planned_exchange(measured([TRUNK, HEAD]), allowed=frozenset({"compress"}), has_ring=True)
    assert {each.module: each.method for each in agreed.methods} == {"head": "power", "trunk": "half"}


UPLINK = 12.5e6


def probed_ranks(islands: list[list[int]], inner: float = 4 * UPLINK, outer: float = UPLINK) -> list[MeasuredExchange]:
    """Eight ranks whose own sums crossed an uplink of 100 Mbit/s all the time, and a probe that knows islands."""
    order = [rank for island in islands for rank in island]
    number = {rank: place for place, island in enumerate(islands) for rank in island}
    rates = [
        inner if number[rank] == number[behind] else outer
        for rank, behind in zip(order, [*order[1:], order[0]], strict=True)
    ]
    links = ProbedLinks(
        order=order, sums=[(256.0, 3e-3), (98_304.0, 3e-3 + 1.75 * 98_304 / min(rates))],
        latencies_s=[1e-4] * len(order), rates=rates, islands=islands, block_bytes=1 << 18, took_s=0.2,
    )  # fmt: skip
    whole = measured([TRUNK], ranks=8)
    return [replace(each, sums=[(s, t * RATE / UPLINK) for s, t in each.sums], links=links) for each in whole]


@pytest.mark.parametrize(
    ("islands", "inner", "method"),
    [
        ([[0, 2, 4, 6], [1, 3, 5, 7]], 4 * UPLINK, "islands"),
        ([[0, 1, 2, 3], [4, 5, 6, 7]], 4 * UPLINK, "islands"),
        ([[0, 1, 2, 3], [4, 5, 6, 7]], UPLINK / 4, ""),  # links inside are slower than what they would spare
        ([[0, 1, 2, 3, 4], [5, 6, 7]], 4 * UPLINK, ""),
        ([[0, 1, 2, 3, 4, 5, 6, 7]], UPLINK, ""),
        ([[rank] for rank in range(8)], UPLINK, ""),
    ],
)
def test_islands_are_named_where_a_probe_found_some_of_one_size(
    islands: list[list[int]], inner: float, method: str
) -> None:
    ranks = probed_ranks(islands, inner)
    agreed = planned_exchange(ranks, has_ring=True)
    assert {each.method for each in agreed.methods} & {"islands"} == ({method} if method else set())
    assert "islands" not in {each.method for each in planned_exchange(ranks).methods}
    without = [replace(each, links=None if each.rank == 3 else each.links) for each in ranks]
    assert "islands" not in {each.method for each in planned_exchange(without, has_ring=True).methods}


def test_a_ring_in_the_order_of_islands_is_faster_than_one_that_crosses_them_at_each_step() -> None:
    """The backend's sums were 4 times slower than what the probe's ring shows: the ring is taken."""
    ranks = probed_ranks([[0, 2, 4], [1, 3, 5, 6, 7]], outer=4 * UPLINK)
    agreed = planned_exchange(ranks, has_ring=True)
    assert {each.method for each in agreed.methods} == {"ring"}
    assert agreed.report is not None
    assert agreed.report.after.exposed_s < 0.4 * agreed.report.before.exposed_s


def test_a_ring_that_a_probe_found_slow_is_not_taken() -> None:
    ranks = probed_ranks([[rank] for rank in range(8)], outer=UPLINK / 2)
    assert planned_exchange(ranks, has_ring=True).methods == []


def test_ranks_with_other_layers_change_nothing() -> None:
    first, second = measured([TRUNK])[0], measured([HEAD])[1]
    agreed = planned_exchange([first, second], has_ring=True)
    assert (agreed.methods, agreed.note) == ([], "ranks do not have the same layers")


def test_islands_of_different_sizes_are_refused_with_their_sizes() -> None:
    report = planned_exchange(probed_ranks([[0, 3, 6], [1, 2, 4, 5, 7]]), has_ring=True).report
    assert report is not None
    assert "a probe found islands of 5 and 3 ranks; sums by islands need islands of one size" in report.notes[-1]


@pytest.mark.parametrize("off", [0.97, 1.0, 1.03])
def test_a_step_is_predicted_from_its_computation_and_not_from_what_sums_leave_of_it(off: float) -> None:
    """The step is 25 times its computation: a fit of sums that is 3 % off leaves nothing of it, or twice as much."""
    computed_s = 0.028
    ranks = [
        replace(
            each, step_s=computed_s + 2e-4 + HEAD.bytes / RATE, computed_s=computed_s,
            sums=[(size, off * seconds) for size, seconds in each.sums],
        )
        for each in measured([HEAD])
    ]  # fmt: skip
    report = planned_exchange(ranks).report
    assert report is not None
    factors = 16 * (2048 + 2048) * 4
    expected = computed_s + factors / RATE + 0.01  # and the joint product
    assert report.after.step_s.likely == pytest.approx(expected, rel=0.05)

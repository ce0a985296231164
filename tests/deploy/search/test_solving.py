"""Foldings by the program against all combinations of small spaces; the proof holds; limits are kept."""

import itertools
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.deploy.rtl.folding import Folding, works_of
from stoker.deploy.rtl.mapping import lower
from stoker.deploy.search.families import Dataflow, SearchedPackage
from stoker.deploy.search.model import KINDS, DeviceDemand, estimated, model_of
from stoker.deploy.search.solving import BAND, demand_of, first_in_order, least_share, order_of
from stoker.deploy.search.space import (
    ChoiceSpace,
    FoldingChoice,
    LanesOf,
    Meeting,
    TableChoice,
    all_choices,
    space_for,
)
from stoker.deploy.tools.devices import FPGAS, fpga
from tests.deploy.rtl.nets import any_net, residual_digits

MODEL = model_of(fpga("ecp5-25k"))
PARTS = st.sampled_from([part for part in FPGAS if part.family == "ecp5"])


@st.composite
def drawn_space(draw: st.DrawFn) -> ChoiceSpace:
    """A few layers in a row with drawn choices, some streams between them."""
    names = [f"layer{at}" for at in range(draw(st.integers(1, 3)))]
    layers = {
        name: [
            FoldingChoice(
                folding=Folding(draw(st.integers(1, 4)), draw(st.sampled_from((1, 2, 4, 6)))), cycles=1,
                lanes_out=draw(st.sampled_from((1, 2, 3, 4))),
                demand=DeviceDemand(
                    luts=draw(st.floats(0, 20_000)), flip_flops=draw(st.floats(0, 20_000)),
                    dsps=draw(st.integers(0, 60)), block_rams=draw(st.integers(0, 60)),
                ),
            )
            for _ in range(draw(st.integers(1, 5)))
        ]
        for name in names
    }  # fmt: skip
    bits = draw(st.sampled_from((8, 800)))  # words so wide that another size is worth avoiding
    meetings = [
        Meeting(given=LanesOf(one), wanted=LanesOf(other, reads=True), bits=bits)
        for one, other in itertools.pairwise(names)
    ]
    meetings.append(Meeting(given=LanesOf(names[-1]), wanted=LanesOf(fixed=draw(st.integers(1, 4))), bits=bits))
    tables = [
        TableChoice(
            layer=f"table{at}", more_bytes=draw(st.integers(1, 20)),
            saved=DeviceDemand(luts=draw(st.floats(0, 300)), block_rams=draw(st.integers(0, 80))),
        )
        for at in range(draw(st.integers(0, 4)))
    ]  # fmt: skip
    rest = sum((each.saved for each in tables), DeviceDemand(luts=300.0))
    return ChoiceSpace(layers=layers, meetings=meetings, rest=rest, combinations=1, tables=tables)


@settings(deadline=None)
@given(drawn_space(), PARTS)
def test_no_combination_comes_before_the_solution_in_the_order(space: ChoiceSpace, part) -> None:
    found = least_share(space, part, MODEL)
    proof = found.certificate
    names = [each.layer for each in space.tables]
    every = {
        away: [
            order_of(demand_of(space, dict(zip(space.layers, combination, strict=True)), MODEL, away), part)
            for combination in itertools.product(*(range(len(choices)) for choices in space.layers.values()))
        ]
        for count in range(len(names) + 1)
        for away in itertools.combinations(names, count)
    }
    cost = {away: sum(each.more_bytes for each in space.tables if each.layer in away) for away in every}
    fitting = [cost[away] for away, orders in every.items() if min(orders)[0] <= 1 - 1e-5]
    if fitting:  # the fewest bytes with which a design fits, and of those designs the least
        assert proof.largest <= 1
    else:  # or with which one comes as near as any
        nearest = min(min(orders)[0] for orders in every.values())
        fitting = [cost[away] for away, orders in every.items() if min(orders)[0] <= nearest]
        assert proof.largest <= nearest * (1 + 1.1 * BAND) + 1e-5
    assert proof.more_bytes <= min(fitting)
    allowed = [each for away, orders in every.items() if cost[away] <= proof.more_bytes for each in orders]
    largest = min(each[0] for each in allowed)
    assert proof.bound <= largest + 1e-5
    assert proof.largest <= largest * (1 + 1.1 * BAND) + 1e-5
    most = largest * (1 + BAND / 2)
    if largest <= 1:  # the others decide among what fits
        most = max(largest, min(most, 1 - 1e-5))
    near = min(each[1] for each in allowed if each[0] <= most)
    assert proof.rest <= near * (1 + 1e-4) + 1e-4
    assert proof.rest_bound <= near + 1e-4
    assert (proof.largest, proof.rest) == order_of(found.demand, part)
    assert found.layers.keys() == space.layers.keys()


def test_all_tables_stay_on_the_chip_where_they_fit() -> None:
    part = fpga("ecp5-25k")
    tables = [
        TableChoice(layer=name, saved=DeviceDemand(block_rams=blocks), more_bytes=more)
        for name, blocks, more in (("wide", 30, 9), ("deep", 30, 4), ("small", 2, 1))
    ]
    layers = {"one": [FoldingChoice(folding=Folding(), cycles=1, lanes_out=1, demand=DeviceDemand(luts=10.0))]}
    for blocks, wanted in ((56, ()), (62, ("deep",)), (57, ("small",)), (90, ("wide", "deep"))):
        space = ChoiceSpace(
            layers=layers, meetings=[], rest=DeviceDemand(block_rams=blocks), combinations=1, tables=tables
        )  # fmt: skip
        found = least_share(space, part, MODEL)
        assert found.host_tables == wanted
        assert found.certificate.more_bytes == sum(each.more_bytes for each in tables if each.layer in wanted)


def test_tables_that_do_not_help_stay_on_the_chip() -> None:
    """Twice the multipliers of the part are taken: no table on the host makes them fewer."""
    part = fpga("ecp5-25k")
    tables = [TableChoice(layer=f"table{at}", saved=DeviceDemand(block_rams=4), more_bytes=500) for at in range(3)]
    taken = DeviceDemand(luts=1000.0, dsps=2 * part.dsps)
    layers = {"one": [FoldingChoice(folding=Folding(), cycles=1, lanes_out=1, demand=taken)]}
    for blocks, wanted in ((12, 0), (2 * part.block_rams + 4, 1)):  # the second is as near with one table less
        space = ChoiceSpace(
            layers=layers, meetings=[], rest=DeviceDemand(block_rams=blocks), combinations=1, tables=tables
        )  # fmt: skip
        found = least_share(space, part, MODEL)
        assert len(found.host_tables) == wanted
        assert found.certificate.more_bytes == 500 * wanted
        assert found.certificate.largest == 2.0


def test_multipliers_are_not_taken_where_another_resource_is_the_scarce_one() -> None:
    """Block memories are as scarce either way: the folding with fewer multipliers is taken."""
    part = fpga("ecp5-25k")

    def choice(lanes: int, luts: float, dsps: int) -> FoldingChoice:
        taken = DeviceDemand(luts=luts, dsps=dsps, block_rams=10 * part.block_rams)
        return FoldingChoice(folding=Folding(1, lanes), cycles=1, lanes_out=1, demand=taken)

    layers = {"one": [choice(1, 9000.0, 405), choice(2, 9500.0, 5)]}
    found = least_share(ChoiceSpace(layers=layers, meetings=[], rest=DeviceDemand(), combinations=2), part, MODEL)
    assert found.demand.dsps == 5


def test_fewer_multipliers_are_not_worth_a_design_that_does_not_fit() -> None:
    part = fpga("ecp5-25k")

    def choice(lanes: int, luts: float, dsps: int) -> FoldingChoice:
        return FoldingChoice(
            folding=Folding(1, lanes), cycles=1, lanes_out=1, demand=DeviceDemand(luts=luts, dsps=dsps)
        )  # fmt: skip

    layers = {"one": [choice(1, part.luts - 8.0, 20), choice(2, part.luts + 7.0, 4)]}
    space = ChoiceSpace(layers=layers, meetings=[], rest=DeviceDemand(), combinations=2)
    found = least_share(space, part, MODEL)
    assert found.demand.dsps == 20
    assert found.certificate.largest <= 1
    assert least_share(space, part, MODEL, room=0.9).demand.dsps == 4  # where neither fits, both are as good


def test_where_nothing_is_chosen_the_rest_is_the_solution() -> None:
    """Pools and functions alone, or tables that stay on the chip: a program without whole numbers."""
    part = fpga("ecp5-25k")
    rest = DeviceDemand(luts=part.luts / 4, block_rams=part.block_rams // 2)
    found = least_share(ChoiceSpace(layers={}, meetings=[], rest=rest, combinations=1), part, MODEL)
    proof = found.certificate
    assert (found.layers, found.host_tables, found.demand) == ({}, (), rest)
    assert (proof.largest, proof.rest) == (0.5, 0.75)
    assert (proof.bound, proof.rest_bound) == pytest.approx((0.5, 0.75))


@cache
def space_of(seed: int):
    graph = any_net(seed)
    works = works_of(graph)
    choices = all_choices(graph, works, MODEL)
    paces = Dataflow(SearchedPackage(name="net", digest="", graph=graph), fpga("ecp5-25k"), MODEL).paces()
    return graph, works, choices, paces


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 9), st.floats(0, 1))
def test_what_is_added_up_is_the_design_that_is_made(seed: int, at: float) -> None:
    """Beside FIFOs in front of joins and the lanes of units without an array, which follow from the foldings."""
    graph, works, choices, paces = space_of(seed)
    cycles = paces[round(at * (len(paces) - 1))]
    space = space_for(graph, works, choices, MODEL, cycles)
    found = least_share(replace(space, tables=()), fpga("ecp5-25k"), MODEL)
    foldings, summed = found.foldings, found.demand
    made = estimated(lower(graph, foldings), MODEL).demand
    assert all(work.cycles(foldings[name]) <= cycles for name, work in works.items())
    assert summed.dsps == made.dsps
    for kind in KINDS:
        assert abs(summed.of(kind) - made.of(kind)) <= 0.1 * made.of(kind) + 3


def test_a_wider_word_is_not_taken_where_resizing_costs_more() -> None:
    """Two layers with one cheap folding each whose words differ: the dearer one that fits is taken."""

    def choice(lanes: int, luts: float) -> FoldingChoice:
        return FoldingChoice(folding=Folding(1, lanes), cycles=1, lanes_out=lanes, demand=DeviceDemand(luts=luts))

    space = ChoiceSpace(
        layers={"one": [choice(4, 1000.0)], "two": [choice(2, 1000.0), choice(4, 1010.0)]},
        meetings=[Meeting(given=LanesOf("one"), wanted=LanesOf("two", reads=True), bits=64)], rest=DeviceDemand(),
        combinations=2,
    )  # fmt: skip
    assert least_share(space, fpga("ecp5-25k"), MODEL).foldings["two"].lanes == 4


def test_equal_throughput_takes_fewer_multipliers_than_one_reuse_factor() -> None:
    graph = residual_digits()
    works = works_of(graph)
    cycles = max(work.windows.images * work.windows.out[0] * work.windows.out[1] for work in works.values()) * 16
    uniform = sum(-(-work.products // work.windows.out[0] // work.windows.out[1] // 16) for work in works.values())
    found = Dataflow(SearchedPackage(name="net", digest="", graph=graph), fpga("ecp5-85k"), MODEL).design(cycles)
    arrays = sum(works[name].multipliers(fold) for name, fold in found.foldings.items())
    assert found.cycles <= cycles
    assert 3 * arrays <= uniform


def test_the_order_is_of_the_largest_share_then_of_all() -> None:
    part = fpga("ecp5-25k")
    assert order_of(DeviceDemand(luts=part.luts / 4, dsps=part.dsps), part) == (1.0, 1.25)


def test_of_designs_within_a_thousandth_the_first_has_the_least_sum_and_fits_where_one_does() -> None:
    def first(*orders: tuple[float, float]) -> tuple[float, float]:
        return first_in_order(orders, lambda each: each)

    assert first((0.3, 0.9), (0.3002, 0.4), (0.3004, 0.2)) == (0.3002, 0.4)
    assert first((0.9998, 3.0), (1.0003, 1.5)) == (0.9998, 3.0)
    assert first((1.0001, 3.0), (1.0003, 1.5)) == (1.0003, 1.5)

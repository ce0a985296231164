"""Foldings by the program against all combinations of small spaces; the proof holds; limits are kept."""

import itertools
from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.deploy.rtl.folding import Folding, works_of
from stoker.deploy.rtl.mapping import lower
from stoker.deploy.search.families import Dataflow, SearchedPackage
from stoker.deploy.search.model import KINDS, DeviceDemand, estimated, model_of
from stoker.deploy.search.solving import SPREAD, demand_of, least_share, objective
from stoker.deploy.search.space import ChoiceSpace, FoldingChoice, LanesOf, Meeting, all_choices, space_for
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
    return ChoiceSpace(layers=layers, meetings=meetings, rest=DeviceDemand(luts=300.0), combinations=1)


@settings(deadline=None)
@given(drawn_space(), PARTS)
def test_no_combination_takes_less_than_the_solution_or_its_bound(space: ChoiceSpace, part) -> None:
    foldings, proof = least_share(space, part, MODEL)
    best = min(
        objective(demand_of(space, dict(zip(space.layers, combination, strict=True)), MODEL), part)
        for combination in itertools.product(*(range(len(choices)) for choices in space.layers.values()))
    )
    assert proof.objective <= best * (1 + 1e-4)
    assert proof.bound <= best + 1e-6
    assert foldings.keys() == space.layers.keys()


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
    foldings, _ = least_share(space, fpga("ecp5-25k"), MODEL)
    chosen = {
        name: next(at for at, choice in enumerate(space.layers[name]) if choice.folding == fold)
        for name, fold in foldings.items()
    }
    summed, made = demand_of(space, chosen, MODEL), estimated(lower(graph, foldings), MODEL).demand
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
    foldings, _ = least_share(space, fpga("ecp5-25k"), MODEL)
    assert foldings["two"].lanes == 4


def test_equal_throughput_takes_fewer_multipliers_than_one_reuse_factor() -> None:
    graph = residual_digits()
    works = works_of(graph)
    cycles = max(work.windows.images * work.windows.out[0] * work.windows.out[1] for work in works.values()) * 16
    uniform = sum(-(-work.products // work.windows.out[0] // work.windows.out[1] // 16) for work in works.values())
    found = Dataflow(SearchedPackage(name="net", digest="", graph=graph), fpga("ecp5-85k"), MODEL).design(cycles)
    arrays = sum(works[name].multipliers(fold) for name, fold in found.foldings.items())
    assert found.cycles <= cycles
    assert 3 * arrays <= uniform


def test_the_objective_is_the_largest_share_with_a_little_of_all() -> None:
    part = fpga("ecp5-25k")
    found = objective(DeviceDemand(luts=part.luts / 4, dsps=part.dsps), part)
    assert found == 1.0 + SPREAD * 1.25

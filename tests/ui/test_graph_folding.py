"""Folding: nothing is lost, no cycle arises, large graphs become few boxes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.records.events import CutChosen
from stoker.ui.graph_folding import LONG_CHAIN, MAX_BOXES, MAX_WIDE, Box, fold, fold_values, rows_of
from tests.ui.cuts import CUTS, Sketch, chain, images, recommender


@st.composite
def programs(draw: st.DrawFn) -> CutChosen:
    """Programs of up to 90 calls in which places follow from what is taken, as a recording's do."""
    sketch = Sketch()
    values = [sketch.leaf(f"batch[{number}]", [8]) for number in range(draw(st.integers(1, 12)))]
    order = ["moved", "stateless", "stateful"]
    rank = dict.fromkeys(values, 0)
    for _ in range(draw(st.integers(0, 90))):
        taken = draw(st.lists(st.sampled_from(values[-12:]), min_size=1, max_size=3, unique=True))
        place = max([rank[value] for value in taken] + [draw(st.sampled_from([0, 0, 0, 1, 2]))])
        site = f"model.py:{draw(st.integers(1, 20))}"
        function = draw(st.sampled_from(["torch.sin", "torch.add", "functional.linear"]))
        made = sketch.call(function, taken, place=order[place], site=site)
        rank[made] = place
        values.append(made)
    return sketch.cut()


def check_sound(cut: CutChosen, boxes: list[Box]) -> None:
    assert sorted(node.number for box in boxes for node in box.nodes) == [node.number for node in cut.nodes]
    for number, box in enumerate(boxes):
        assert {node.place for node in box.nodes} == {box.place}
        assert all(source < number for source in box.sources)


@settings(max_examples=60, deadline=None)
@given(programs())
def test_every_call_is_in_one_box_after_those_it_takes_from(cut: CutChosen) -> None:
    boxes = fold(cut)
    check_sound(cut, boxes)
    box_of = {node.number: number for number, box in enumerate(boxes) for node in box.nodes}
    for node in cut.nodes:
        for value in node.inputs:
            producer = cut.values[value].producer
            if producer is not None and box_of[producer] != box_of[node.number]:
                assert box_of[producer] in boxes[box_of[node.number]].sources


@pytest.mark.parametrize("name", CUTS)
def test_few_boxes(name: str) -> None:
    cut = CUTS[name]()
    boxes = fold(cut)
    check_sound(cut, boxes)
    assert len(boxes) <= MAX_BOXES
    rows = rows_of(boxes)
    together = [(rows[number], box.place == "moved") for number, box in enumerate(boxes)]
    assert max(map(together.count, together)) <= MAX_WIDE


def test_a_small_graph_is_shown_call_by_call() -> None:
    cut = images()
    assert [len(box.nodes) for box in fold(cut)] == [1] * len(cut.nodes)


@pytest.mark.parametrize(("calls", "boxes"), [(LONG_CHAIN, LONG_CHAIN), (LONG_CHAIN + 1, 3), (60, 3)])
def test_a_long_chain_shows_its_ends(calls: int, boxes: int) -> None:
    moved = [box for box in fold(chain(calls)) if box.place == "moved"]
    assert len(moved) == boxes
    if boxes == 3:
        assert [len(box.nodes) for box in moved] == [1, calls - 2, 1]


def test_calls_of_one_line_are_one_box() -> None:
    sizes = {(box.functions[0], len(box.nodes)) for box in fold(recommender(26, 14)) if len(box.functions) == 1}
    assert {("Tensor.bitwise_xor", 26), ("functional.embedding", 26)} <= sizes


def test_tensors_are_folded_by_kind_then_by_size() -> None:
    sketch = Sketch()
    numbers = [sketch.leaf(f"batch[{number}]", [number + 1]) for number in range(20)]
    values = [sketch.values[number] for number in numbers]
    assert fold_values(values[:MAX_WIDE], lambda value: value.number) == [[value] for value in values[:MAX_WIDE]]
    assert len(fold_values(values, lambda value: value.number % 2)) == 2
    by_size = fold_values(values, lambda value: value.number)
    assert len(by_size) == MAX_WIDE
    assert sorted(value.number for group in by_size for value in group) == numbers
    assert [values[-1]] in by_size

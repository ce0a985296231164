"""Layered drawing: rows follow the edges, nothing overlaps, crossings do not grow."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.ui.graph_layers import keep_apart, lay_out, longest_paths, sorted_by_dependence


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    """Edges lead from a lower number to a higher one."""
    count = draw(st.integers(1, 14))
    pairs = [(source, target) for target in range(count) for source in range(target)]
    return count, draw(st.lists(st.sampled_from(pairs), unique=True, max_size=30)) if pairs else []


@settings(max_examples=100, deadline=None)
@given(graphs())
def test_edges_lead_down_and_items_of_a_row_stand_apart(graph: tuple[int, list[tuple[int, int]]]) -> None:
    count, edges = graph
    rows = longest_paths(edges, dict.fromkeys(range(count), 0))
    assert all(rows[source] < rows[target] for source, target in edges)
    drawing = lay_out(rows, edges, lambda item: 50.0 + item, 10.0)
    for row in drawing.rows:
        for left, right in pairwise(row):
            widths = [50.0 + item if item >= 0 else 12.0 for item in (left, right)]
            assert drawing.centre[right] - drawing.centre[left] >= sum(widths) / 2 + 10.0 - 1e-6
    assert {item for row in drawing.rows for item in row if item >= 0} == set(range(count))
    for source, target in edges:
        way = drawing.ways[source, target]
        assert (way[0], way[-1]) == (source, target)
        assert len(way) == rows[target] - rows[source] + 1


def test_order_takes_out_a_crossing() -> None:
    drawing = lay_out({0: 0, 1: 0, 2: 1, 3: 1}, [(0, 3), (1, 2)], lambda _: 10.0, 5.0)
    top, bottom = drawing.rows
    assert [top.index(0) < top.index(1)] == [bottom.index(3) < bottom.index(2)]


def test_a_chain_is_straight() -> None:
    drawing = lay_out({0: 0, 1: 0, 2: 1, 3: 2}, [(0, 2), (2, 3)], lambda _: 100.0, 20.0)
    assert drawing.centre[2] == pytest.approx(drawing.centre[3])
    assert drawing.centre[0] == pytest.approx(drawing.centre[2])


@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(0, 100), st.floats(0.5, 4)), min_size=1, max_size=8))
def test_places_keep_their_order_and_their_distance(found: list[tuple[float, float, float]]) -> None:
    wanted, spaces, weights = zip(*found, strict=True)
    places = keep_apart(wanted, spaces[1:], weights)
    assert all(right - left >= space - 1e-6 for (left, right), space in zip(pairwise(places), spaces[1:], strict=True))


def test_places_that_fit_already_stay() -> None:
    assert keep_apart([0.0, 10.0, 30.0], [5.0, 5.0], [1.0, 1.0, 1.0]) == [0.0, 10.0, 30.0]
    assert keep_apart([0.0, 0.0], [10.0], [1.0, 1.0]) == [-5.0, 5.0]


def test_a_cycle_of_a_damaged_record_ends() -> None:
    assert sorted(sorted_by_dependence({0: [1], 1: [0], 2: [1, 7]})) == [0, 1, 2]

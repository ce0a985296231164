"""Which CPUs a job takes for itself: never more than there are, nothing without need, one node at a time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.ray.broker import Wants
from stoker.backends.ray.grants import PAUSE_S, WAIT_S, FreeNode, Waiting, grants_alone


def node(node_id: str, free: int, *, here: bool = False) -> FreeNode:
    return FreeNode(node_id=node_id, free_cpus=free, is_here=here)


def test_nothing_is_taken_without_need() -> None:
    assert grants_alone(0, [node("a", 8)], {}) == {}


def test_the_emptiest_node_elsewhere_goes_first() -> None:
    nodes = [node("here", 64, here=True), node("a", 2), node("b", 4)]
    assert grants_alone(3, nodes, {}) == {"b": 3}


def test_its_nodes_are_filled_up_before_one_more_is_taken() -> None:
    nodes = [node("a", 1), node("b", 4), node("c", 3)]
    assert grants_alone(20, nodes, {"a": 2}) == {"a": 3, "b": 4}


def test_this_machine_serves_where_there_is_no_other() -> None:
    assert grants_alone(2, [node("here", 4, here=True), node("a", 0)], {}) == {"here": 2}


def test_the_smallest_share_goes_back_first() -> None:
    assert grants_alone(4, [node("a", 0), node("b", 0), node("c", 0)], {"a": 4, "b": 1, "c": 2}) == {"a": 4}
    assert grants_alone(5, [node("a", 0), node("b", 0)], {"a": 4, "b": 2}) == {"a": 4, "b": 1}


def test_a_node_that_is_gone_is_given_up() -> None:
    assert grants_alone(4, [node("b", 8)], {"a": 4}) == {"b": 4}


clusters = st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=6)


@given(st.integers(0, 40), clusters)
def test_no_node_is_over_granted_and_the_number_is_kept(wanted: int, found: dict[str, tuple[int, int]]) -> None:
    nodes = [node(name, free) for name, (free, _) in found.items()]
    held = {name: own for name, (_, own) in found.items() if own}
    grants = grants_alone(wanted, nodes, held)
    assert all(0 < grants[name] <= sum(found[name]) for name in grants)
    assert sum(grants.values()) <= max(wanted, 0)
    assert len(grants.keys() - held.keys()) <= 1
    if sum(held.values()) <= wanted:
        assert all(grants[name] >= held[name] for name in held), "nothing is given back without cause"
    for _ in range(8):
        grants = grants_alone(wanted, [node(n, f + o - grants.get(n, 0)) for n, (f, o) in found.items()], grants)
    assert sum(grants.values()) == min(wanted, sum(map(sum, found.values()))), "in the end it has all it can have"


def test_what_is_not_wanted_any_more_is_kept_for_a_while() -> None:
    wants = Wants()
    assert [wants.most(at_s, count) for at_s, count in ((0.0, 4), (5.0, 0), (15.0, 2), (19.0, 0))] == [4] * 4
    assert [wants.most(at_s, 0) for at_s in (21.0, 34.0, 36.0)] == [2, 2, 0]


@given(st.lists(st.tuples(st.floats(0.1, 400.0), st.integers(0, 100)), max_size=40))
def test_a_need_is_shown_for_a_bounded_time_and_again_after_a_pause(rows: list[tuple[float, int]]) -> None:
    waiting, now_s, shown_s = Waiting(), 0.0, 0.0
    for step_s, unmet in rows:
        now_s += step_s
        count = waiting.count(unmet, now_s)
        assert 0 <= count <= unmet
        shown_s = shown_s + step_s if count else 0.0
        assert shown_s < WAIT_S + PAUSE_S
        if not unmet:
            assert waiting.count(1, now_s) == 1, "a new need is shown at once"
            waiting.count(0, now_s)

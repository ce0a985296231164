"""Fronts by any number of figures: nothing beats them, all that nothing beats is matched."""

from hypothesis import given
from hypothesis import strategies as st

from stoker.core.pareto import beats, front

THINGS = st.integers(1, 4).flatmap(
    lambda count: st.lists(st.lists(st.integers(0, 5), min_size=count, max_size=count), max_size=30)
)


@given(THINGS)
def test_nothing_beats_the_front_and_each_that_nothing_beats_is_matched(things: list[list[int]]) -> None:
    found = front(things, lambda thing: thing)
    assert found == sorted(found)
    unbeaten = {tuple(each) for each in things if not any(beats(other, each) for other in things)}
    assert [tuple(each) for each in found] == sorted(unbeaten)


@given(THINGS)
def test_of_equals_the_preferred_one_stays(things: list[list[int]]) -> None:
    named = [(at, thing) for at, thing in enumerate(things)]
    first, last = (front(named, lambda each: each[1], lambda each, sign=sign: sign * each[0]) for sign in (1, -1))
    assert [each[1] for each in first] == [each[1] for each in last]
    for (early, figures), (late, _) in zip(first, last, strict=True):
        same = [at for at, thing in named if thing == figures]
        assert (early, late) == (same[0], same[-1])

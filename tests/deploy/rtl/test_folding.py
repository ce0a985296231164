"""Foldings: cycles by closed form, and the choice among them against all there are."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.deploy.rtl.folding import Folding, LayerWork, balanced, cheapest, folded, tap_choices, total_multipliers
from stoker.deploy.rtl.geometry import Windows


@st.composite
def drawn_work(draw: st.DrawFn) -> LayerWork:
    groups = draw(st.sampled_from((1, 1, 2, 3)))
    channels = groups * draw(st.integers(1, 4))
    kernel = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    windows = Windows(size=(draw(st.integers(3, 6)), draw(st.integers(3, 6))), channels=channels, kernel=kernel)
    return LayerWork(windows=windows, outputs=groups * draw(st.integers(1, 4)), groups=groups)


@given(drawn_work())
def test_all_multipliers_are_busy_in_each_cycle(work: LayerWork) -> None:
    for folding in work.foldings():
        assert work.cycles(folding) * work.multipliers(folding) == work.products
        assert work.products % work.sum_beats(folding) == 0
        assert folding.pe % work.result_beats(folding) == 0
        assert work.result_beats(folding) <= work.sum_beats(folding)


@given(drawn_work(), st.integers(1, 3000))
def test_the_cheapest_is_as_fast_and_none_as_fast_has_fewer(work: LayerWork, cycles: int) -> None:
    fast = [work.multipliers(each) for each in work.foldings() if work.cycles(each) <= cycles]
    if not fast:
        with pytest.raises(ValueError, match="`cycles` must be at least"):
            cheapest(work, cycles)
        return
    chosen = cheapest(work, cycles)
    assert work.cycles(chosen) <= cycles
    assert work.multipliers(chosen) == min(fast)


@given(st.lists(drawn_work(), min_size=1, max_size=2), st.integers(2, 40))
def test_the_balanced_ones_are_the_best_of_all_within_their_multipliers(
    works: list[LayerWork], multipliers: int
) -> None:
    named = {f"layer{at}": work for at, work in enumerate(works)}
    chosen = balanced(named, multipliers)
    slowest = max(named[name].cycles(folding) for name, folding in chosen.items())
    assert total_multipliers(named, chosen) <= multipliers
    for combination in itertools.product(*(list(work.foldings()) for work in works)):
        if sum(work.multipliers(each) for work, each in zip(works, combination, strict=True)) <= multipliers:
            assert max(work.cycles(each) for work, each in zip(works, combination, strict=True)) >= slowest


def test_lanes_over_several_taps_need_fewer_multipliers_than_whole_channels() -> None:
    work = LayerWork(windows=Windows(size=(8, 8), channels=1, kernel=(3, 3), padding=(1, 1, 1, 1)), outputs=8)
    chosen = cheapest(work, 1536)
    assert chosen == Folding(1, 1, 3)
    without = min(
        work.multipliers(each) for each in work.foldings() if each.taps == 1 and work.cycles(each) <= 1536
    )  # fmt: skip
    assert (work.multipliers(chosen), without) == (3, 4)


def test_taps_are_parts_of_a_row_or_whole_rows() -> None:
    assert list(tap_choices((3, 3))) == [1, 3, 9]
    assert list(tap_choices((4, 2))) == [1, 2, 4, 8]
    assert list(tap_choices((1, 5))) == [1, 5]


def test_more_layers_than_multipliers_are_refused() -> None:
    work = LayerWork(windows=Windows(size=(1, 1), channels=4), outputs=4)
    with pytest.raises(ValueError, match=r"`multipliers` must be at least 2, one a layer, got 1"):
        balanced({"a": work, "b": work}, 1)
    assert folded({"a": work}, 16) == {"a": Folding(1, 1, 1)}

"""What steps on like batches show of their cut, without a program."""

from __future__ import annotations

from collections.abc import Collection

from hypothesis import given
from hypothesis import strategies as st

from stoker.graph.choice.variant_state import Finding, Shown, VariantPhase, VariantState


def comparing() -> VariantState:
    state = VariantState()
    state.begin_comparing()
    return state


def step(
    state: VariantState,
    *,
    differing: Collection[int] = (),
    missed: int | None = None,
    realised: Collection[int] = (),
    kept: Collection[int] = (),
    may_record: bool = True,
) -> Finding | None:
    return state.on_step(differing, missed, realised, kept, complete=missed is None, may_record=may_record)


def test_a_cut_is_on_after_enough_compared_steps_and_said_to_be_once() -> None:
    state = comparing()
    found = [step(state) for _ in range(2 * state.COMPARED_STEPS)]
    assert [one.shown for one in found if one is not None] == [Shown.PROVEN]
    assert found.index(Finding(Shown.PROVEN)) == state.COMPARED_STEPS - 1
    assert state.phase is VariantPhase.ON


def test_a_step_that_lacks_a_call_proves_nothing() -> None:
    state = comparing()
    assert [step(state, missed=3 if number % 2 else None) for number in range(4)] == [None] * 4
    assert state.phase is VariantPhase.COMPARING
    assert step(state) == Finding(Shown.PROVEN)


def test_what_differs_comes_first_and_is_no_step() -> None:
    state = comparing()
    assert step(state, differing=[4, 7], missed=1, realised=[2]) == Finding(Shown.DIFFERS, (4, 7))
    assert (state.steps, state.in_a_row, state.missed.total(), state.seen_realised.total()) == (0, 0, 0, 0)


def test_a_value_that_is_needed_twice_is_kept_and_not_named_again() -> None:
    state = comparing()
    assert step(state, realised=[5]) is None
    assert step(state, realised=[5, 6]) == Finding(Shown.NEEDED, (5,))
    assert step(state, realised=[5], kept=[5]) is None
    assert step(state, realised=[6], kept=[5]) == Finding(Shown.NEEDED, (6,))


def test_another_phase_is_one_that_lasts_and_may_be_recorded() -> None:
    state = comparing()
    for _ in range(state.OTHER_PHASE - 1):
        assert step(state, missed=2) is None
    assert step(state) is None, "as recorded: the count begins anew"
    for _ in range(state.OTHER_PHASE - 1):
        assert step(state, missed=2) is None
    assert step(state, missed=2, may_record=False) is None
    assert step(state, missed=9) == Finding(Shown.OTHER_PHASE, (9,))


def test_a_call_is_doubted_where_most_steps_of_a_window_lack_one() -> None:
    for broken, doubted in ((VariantState.WINDOW // 2, False), (VariantState.WINDOW // 2 + 1, True)):
        state = comparing()
        state.phase = VariantPhase.ON
        found = [step(state, missed=8 if number < broken else None, may_record=False) for number in range(state.WINDOW)]
        assert found[:-1] == [None] * (state.WINDOW - 1)
        assert found[-1] == (Finding(Shown.DOUBTED, (8,)) if doubted else None)
        assert (state.steps, state.missed.total()) == (0, 0), "the next window has its own"


def test_what_was_left_whole_is_looked_at_ever_more_seldom() -> None:
    state, again = VariantState(), list[int]()
    for iteration in range(1, 20):
        state.phase = VariantPhase.WHOLE
        if state.looks_again():
            again.append(iteration)
            assert state.phase is VariantPhase.RECORDING
    assert again == [1, 2, 4, 8, 16]
    state.phase = VariantPhase.ON
    assert not state.looks_again()


@given(st.lists(st.tuples(st.booleans(), st.sampled_from([None, None, None, 1, 2]), st.sets(st.integers(0, 3)))))
def test_nothing_is_on_that_was_not_compared_often_enough(
    steps: list[tuple[bool, int | None, set[int]]],
) -> None:
    state, kept, good = comparing(), set[int](), 0
    for differs, missed, realised in steps:
        found = step(state, differing=[0] if differs else [], missed=missed, realised=realised, kept=kept)
        good += found is None and missed is None
        if found is None:
            continue
        if found.shown is Shown.PROVEN:
            assert good + 1 >= state.COMPARED_STEPS
            assert state.phase is VariantPhase.ON
            return
        kept.update(found.numbers if found.shown is Shown.NEEDED else ())
        state.begin_comparing()  # as where a cut is chosen again
        good = 0
    assert state.phase is VariantPhase.COMPARING

"""Who makes the next batch of an iteration, and when that changes: events in, instructions out, no process."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.errors import DifferentResultError, WorkerStartError
from stoker.feed.state import events as ev
from stoker.feed.state import instructions as do
from stoker.feed.state import life as module
from stoker.feed.state.life import RECHECK_EVERY, Life, Phase
from stoker.feed.state.trial import MIN_BATCH_S, TRIAL_BATCHES, Trial

LOST = WorkerStartError("no data worker could be started: no memory")


def life(declared: int = 2, *, elastic: bool = True, candidate: bool = False, **options: Any) -> Life:
    return Life(declared=declared, elastic=elastic, candidate=candidate, **options)


def begun(declared: int = 2, **options: Any) -> Life:
    found = life(declared, **options)
    found.on(ev.Begun())
    return found


def on_trial(**options: Any) -> Life:
    found = begun(0, candidate=True, **options)
    found.on(ev.TrialBegun(1000, 0, 1e-4))
    return found


def examined(**seen: bool) -> ev.Examined:
    return ev.Examined(100, seen.get("drew", False), seen.get("is_plain", True), seen.get("changed", False), 1e-4)


def tried(**options: Any) -> Life:
    """Its trial is over, and nothing speaks against moving it."""
    found = on_trial(**options)
    for step in range(TRIAL_BATCHES):
        assert kinds(found.on(ev.Next(step))) == [do.MakeHere]
        assert kinds(found.on(ev.MadeHere(0.02))) == [do.Examine]
        found.on(examined())
    return found


def with_twin(**options: Any) -> Life:
    """Its first batch is made in both places."""
    found = tried(**options)
    found.on(ev.Next(TRIAL_BATCHES))
    found.on(ev.Started())
    return found


def moved(**options: Any) -> Life:
    """An earlier iteration has shown that workers may make its batches."""
    found = begun(0, **options)
    assert found.on(ev.Started()) == []
    return found


def kinds(out: list[do.Instruction]) -> list[type]:
    return [type(instruction) for instruction in out]


# -- beginnings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("declared", "elastic", "candidate", "phase", "first"),
    [
        (2, True, True, Phase.PROBING, do.Open),
        (2, True, False, Phase.FEEDING, do.Open),
        (2, False, False, Phase.FEEDING, do.Open),
        (0, True, True, Phase.OPENING, do.BeginTrial),
        (0, True, False, Phase.FEEDING, do.Start),
        (0, False, False, Phase.IN_PROCESS, do.OpenHere),
    ],
    ids=["to be probed", "elastic", "pinned", "to be tried", "moved", "in process"],
)
def test_what_is_known_of_a_loader_says_how_its_iteration_begins(
    declared: int, elastic: bool, candidate: bool, phase: Phase, first: type
) -> None:
    found = life(declared, elastic=elastic, candidate=candidate)
    assert found.phase is Phase.OPENING
    assert kinds(found.on(ev.Begun())) == [first]
    assert found.phase is phase


def test_a_mistake_where_moved_workers_are_started_is_the_callers() -> None:
    error = RuntimeError("a mistake")
    assert begun(0).on(ev.NotStarted(error)) == [do.Raise(error)]


# -- declared workers --------------------------------------------------------------------------------------------------


def test_workers_are_taken_from_without_a_question_once_the_first_batch_is_there() -> None:
    found = begun()
    assert found.on(ev.Next(0)) == [do.Take()]
    assert not found.takes
    assert found.on(ev.Next(1)) == [do.Dismiss(), do.Take()]
    assert found.takes


def test_an_iteration_that_is_gone_on_with_has_nobody_to_dismiss() -> None:
    found = begun()
    assert found.on(ev.Next(7)) == [do.Take()]
    assert found.takes


def test_a_first_batch_that_is_safe_is_handed_out_before_the_verdict() -> None:
    found = begun(candidate=True)
    assert found.on(ev.Next(0)) == [do.AwaitFirst()]
    assert found.on(ev.FirstMade(True)) == [do.Take()]
    assert found.phase is Phase.PROBING
    assert found.on(ev.Next(1)) == [do.Settle()]
    assert found.on(ev.Settled(True)) == [do.Dismiss(), do.Take()]
    assert found.phase is Phase.FEEDING


def test_another_one_waits_for_it() -> None:
    found = begun(candidate=True)
    found.on(ev.Next(0))
    assert found.on(ev.FirstMade(False)) == [do.Settle()]
    assert found.on(ev.Settled(True)) == [do.Take()]


def test_the_verdict_is_waited_for_once() -> None:
    """A first batch that raises is followed by the second one."""
    found = begun(candidate=True)
    found.on(ev.Next(0))
    found.on(ev.FirstMade(True))
    assert found.on(ev.Next(0)) == [do.Settle()]


def test_samples_that_depend_on_more_are_made_by_pinned_workers() -> None:
    found = begun(candidate=True)
    found.on(ev.Next(0))
    found.on(ev.FirstMade(False))
    assert found.on(ev.Settled(False)) == [do.GoPinned(), do.Take()]
    assert found.phase is Phase.FEEDING
    assert found.on(ev.Stranded(LOST)) == [do.Raise(LOST)]


def test_where_no_workers_are_wanted_the_rest_is_made_here() -> None:
    found = begun(candidate=True, wants_workers=False)
    found.on(ev.Next(0))
    found.on(ev.FirstMade(True))
    found.on(ev.Next(1))
    assert found.on(ev.Settled(True)) == [do.Leave(), do.MakeHere()]
    assert found.phase is Phase.IN_PROCESS
    assert found.on(ev.Next(2)) == [do.MakeHere()]


def test_where_none_are_wanted_and_the_tier_is_known_none_are_started() -> None:
    found = life(wants_workers=False)
    assert found.on(ev.Begun()) == [do.OpenHere()]
    assert found.on(ev.Next(0)) == [do.MakeHere()]
    assert kinds(life(elastic=False, wants_workers=False).on(ev.Begun())) == [do.Open], "but for pinned ones"


def test_where_none_are_wanted_none_are_tried() -> None:
    found = life(0, candidate=True, wants_workers=False)
    assert found.on(ev.Begun()) == [do.Stay(module.NOT_WANTED), do.OpenHere()]
    assert found.phase is Phase.IN_PROCESS


def test_where_no_workers_can_be_had_the_rest_is_made_here() -> None:
    found = begun()
    found.on(ev.Next(1))
    notice, *rest = found.on(ev.Stranded(LOST))
    assert isinstance(notice, do.Notice)
    assert notice.text == f"{LOST.args[0]}; the rest of the iteration is made in the training process"
    assert rest == [do.Leave(), do.MakeHere()]
    assert (found.phase, found.takes) == (Phase.IN_PROCESS, False)


def test_before_the_verdict_nobody_knows_what_could_be_made_here() -> None:
    found = begun(candidate=True)
    found.on(ev.Next(0))
    found.on(ev.FirstMade(True))
    assert found.on(ev.Stranded(LOST)) == [do.Raise(LOST)]


# -- no declared workers -----------------------------------------------------------------------------------------------


def test_a_loader_that_stays_asks_nobody() -> None:
    found = begun(0, elastic=False)
    assert [found.on(ev.Next(step)) for step in range(3)] == [[do.MakeHere()]] * 3
    assert found.on(ev.MadeHere(1.0)) == []


def test_a_trial_that_can_not_be_begun_stays_in_the_training_process() -> None:
    found = begun(0, candidate=True)
    assert found.on(ev.NotExamined()) == []
    assert found.phase is Phase.IN_PROCESS
    assert found.on(ev.Next(0)) == [do.MakeHere()]


def test_a_trial_makes_its_first_batches_here_and_then_starts_workers() -> None:
    found = tried()
    assert found.phase is Phase.TRIAL
    assert found.on(ev.Next(TRIAL_BATCHES)) == [do.Start()]
    assert found.on(ev.Started()) == [do.MakeTwin()]
    assert found.phase is Phase.PROBING


def test_a_quick_batch_is_not_looked_at_and_ends_the_trial() -> None:
    found = on_trial()
    found.on(ev.Next(0))
    assert found.on(ev.MadeHere(MIN_BATCH_S / 2)) == []
    stay, make = found.on(ev.Next(1))
    assert isinstance(stay, do.Stay)
    assert "nothing to gain" in stay.why
    assert not stay.keep_trying
    assert make == do.MakeHere()
    assert found.phase is Phase.IN_PROCESS


@pytest.mark.parametrize("keeps_random", [True, False])
def test_a_draw_keeps_a_loader_here_unless_samples_have_seeds(keeps_random: bool) -> None:
    found = on_trial(keeps_random=keeps_random)
    found.on(ev.Next(0))
    found.on(ev.MadeHere(0.02))
    found.on(examined(drew=True))
    assert (kinds(found.on(ev.Next(1))) == [do.Stay, do.MakeHere]) is keeps_random


def test_a_batch_that_was_not_looked_at_ends_the_trial() -> None:
    found = on_trial()
    found.on(ev.Next(0))
    found.on(ev.NotExamined())
    assert found.on(ev.Next(1)) == [do.Stay("stoker failed to look at its batches"), do.MakeHere()]


def test_a_mistake_in_the_judgement_is_told_and_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ZeroDivisionError("planted")

    def fail(_: Trial) -> str:
        raise error

    monkeypatch.setattr(Trial, "verdict", fail)
    failed = [do.Failed(module.TRIAL, error), do.Stay("stoker failed to judge its batches"), do.MakeHere()]
    assert tried().on(ev.Next(TRIAL_BATCHES)) == failed


def test_a_mistake_where_workers_are_started_is_told_and_does_no_harm() -> None:
    found, error = tried(), OSError("planted")
    found.on(ev.Next(TRIAL_BATCHES))
    failed, stay, make = found.on(ev.NotStarted(error))
    assert failed == do.Failed("start of data workers", error)
    assert stay == do.Stay("stoker failed to start data workers")
    assert make == do.MakeHere()
    assert found.phase is Phase.IN_PROCESS


def test_where_no_worker_can_be_started_the_loader_stays_and_that_is_no_mistake() -> None:
    found = tried()
    found.on(ev.Next(TRIAL_BATCHES))
    assert kinds(found.on(ev.NotStarted(LOST))) == [do.Notice, do.Stay, do.MakeHere]
    assert found.phase is Phase.IN_PROCESS


def test_a_program_that_goes_on_after_an_error_where_workers_are_started_gets_its_batches() -> None:
    found = tried()
    assert found.on(ev.Next(TRIAL_BATCHES)) == [do.Start()]  # which its signal handler interrupts
    assert found.on(ev.Next(TRIAL_BATCHES)) == [do.MakeHere()]
    assert found.phase is Phase.IN_PROCESS


def test_an_iteration_that_ends_within_its_trial_is_tried_again() -> None:
    found = on_trial()
    found.on(ev.Next(0))
    assert found.on(ev.Over(True)) == [do.Stay("its iterations are too short to try", keep_trying=True)]
    assert found.phase is Phase.ENDED
    assert found.on(ev.Over()) == [], "once"


def test_one_that_the_program_leaves_says_nothing_of_it() -> None:
    found = on_trial()
    assert found.on(ev.Over()) == []
    assert found.phase is Phase.ENDED


def test_a_twin_that_is_the_same_moves_the_loader() -> None:
    found = with_twin()
    assert found.on(ev.Next(4)) == [do.Settle()]
    assert found.on(ev.Settled(True)) == [do.CompareTwin()]
    assert found.on(ev.TwinCompared(False)) == [do.Take()]
    assert found.phase is Phase.FEEDING
    assert found.on(ev.Next(5)) == [do.Look()]


def test_a_twin_that_differs_brings_it_back_with_a_reason() -> None:
    found = with_twin()
    found.on(ev.Next(4))
    found.on(ev.Settled(True))
    stay = do.Stay("its batches come out different in a data worker")
    assert found.on(ev.TwinCompared(True)) == [stay, do.Leave(), do.MakeHere()]
    assert found.phase is Phase.IN_PROCESS


def test_it_may_differ_where_samples_have_seeds() -> None:
    found = with_twin(keeps_random=False)
    found.on(ev.Next(4))
    found.on(ev.Settled(True))
    assert found.on(ev.TwinCompared(True)) == [do.Take()]


@pytest.mark.parametrize("differs", [True, False])
def test_samples_that_depend_on_more_bring_it_back(differs: bool) -> None:
    """Why is told where samples are compared; the workers' batch is taken, since the program has it."""
    found = with_twin()
    found.on(ev.Next(4))
    assert found.on(ev.Settled(False)) == [do.CompareTwin()]
    assert found.on(ev.TwinCompared(differs)) == [do.Leave(), do.MakeHere()]
    assert found.phase is Phase.IN_PROCESS


def test_a_change_brings_a_moved_loader_back_before_its_next_batch() -> None:
    found = moved()
    assert found.on(ev.Next(0)) == [do.Look()]
    assert found.on(ev.Looked(False)) == [do.Take()]
    assert found.on(ev.Next(1)) == [do.Look()]
    leave, notice, make = found.on(ev.Looked(True))
    assert (leave, make) == (do.Leave(), do.MakeHere())
    assert isinstance(notice, do.Notice)
    assert "has changed" in notice.text
    assert found.on(ev.Next(2)) == [do.MakeHere()], "for the rest of the iteration"


def test_now_and_then_a_batch_is_made_in_both_places() -> None:
    found, repeats = moved(), list[int]()
    for step in range(3 * RECHECK_EVERY):
        found.on(ev.Next(step))
        if found.on(ev.Looked(False)) == [do.Take(repeat=True)]:
            repeats.append(step)
            assert found.on(ev.Repeated(False)) == []
    assert repeats == [RECHECK_EVERY, 2 * RECHECK_EVERY]


def test_one_that_differs_is_an_error() -> None:
    found = moved()
    found.on(ev.Next(RECHECK_EVERY + 3))
    found.on(ev.Looked(False))
    (raised,) = found.on(ev.Repeated(True))
    assert isinstance(raised, do.Raise)
    assert isinstance(raised.error, DifferentResultError)
    assert "batches 3 to 100 of this iteration may be affected" in str(raised.error)


def test_a_moved_loader_that_loses_its_workers_goes_on_here() -> None:
    found = moved()
    found.on(ev.Next(0))
    found.on(ev.Looked(False))
    assert kinds(found.on(ev.Stranded(LOST))) == [do.Notice, do.Leave, do.MakeHere]


def test_one_that_loses_them_while_it_is_compared_goes_on_here_as_well() -> None:
    found = with_twin()
    found.on(ev.Next(4))
    assert kinds(found.on(ev.Stranded(LOST))) == [do.Notice, do.Leave, do.MakeHere]


# -- any life ----------------------------------------------------------------------------------------------------------

ANSWERS: dict[type, Any] = {
    do.AwaitFirst: st.builds(ev.FirstMade, st.booleans()),
    do.Settle: st.builds(ev.Settled, st.booleans()) | st.just(ev.Stranded(LOST)),
    do.BeginTrial: st.sampled_from([ev.TrialBegun(None, 0, 0.0), ev.TrialBegun(3, 0, 0.0), ev.NotExamined()]),
    do.Start: st.just(ev.Started()) | st.just(ev.NotStarted(OSError())) | st.just(ev.NotStarted(LOST)),
    do.CompareTwin: st.builds(ev.TwinCompared, st.booleans()) | st.just(ev.Stranded(LOST)),
    do.Look: st.builds(ev.Looked, st.booleans()),
}  # fmt: skip
DELIVERS = (do.Take, do.MakeHere, do.MakeTwin)


@settings(max_examples=300)
@given(st.data(), st.integers(0, 2), st.booleans(), st.booleans(), st.booleans())
def test_each_request_comes_to_one_batch_or_one_error_from_where_there_are_workers_or_none(
    data: st.DataObject, declared: int, elastic: bool, wants_workers: bool, keeps_random: bool
) -> None:
    """Whatever happens: workers are taken from where they are, what is made here is made when they are gone."""
    candidate = elastic and data.draw(st.booleans())
    found = life(declared, elastic=elastic, candidate=candidate, wants_workers=wants_workers, keeps_random=keeps_random)
    has_workers = can_make = False

    def follow(event: ev.LifeEvent) -> type | None:
        nonlocal has_workers, can_make
        out = found.on(event)
        while True:
            for instruction in out:
                kind = type(instruction)
                if kind in (do.Open, do.OpenHere, do.BeginTrial):
                    has_workers, can_make = kind is do.Open, kind is not do.Open
                elif kind is do.Leave:
                    assert has_workers
                    has_workers, can_make = False, True
                elif kind in (do.Take, do.MakeTwin, do.CompareTwin, do.AwaitFirst, do.Settle, do.GoPinned, do.Look):
                    assert has_workers, kind
                elif kind is do.MakeHere:
                    assert can_make
                elif kind is do.Raise:
                    return do.Raise
                if kind in DELIVERS:
                    assert instruction is out[-1]
                    return kind
            if not out or type(out[-1]) not in ANSWERS:
                return None
            answer = data.draw(ANSWERS[type(out[-1])])
            if isinstance(answer, ev.Started):
                has_workers, can_make = True, False
            out = found.on(answer)

    if follow(ev.Begun()) is do.Raise:
        return
    for yielded in range(12):
        kind = follow(ev.Next(yielded))
        if kind is do.Take and data.draw(st.integers(0, 9)) == 0:
            kind = follow(ev.Stranded(LOST))
        if kind is do.Raise:
            return
        assert kind in DELIVERS
        trouble = data.draw(st.sampled_from(["", "", "", "", "quick", "drew", "changed"]))
        if found.phase is Phase.TRIAL and found.on(ev.MadeHere(0.001 if trouble == "quick" else 0.5)):
            found.on(examined(**{trouble: True}))
        assert found.takes <= (found.phase is Phase.FEEDING and has_workers)
    follow(ev.Over(data.draw(st.booleans())))
    assert found.phase is Phase.ENDED

"""Which loaders without workers are worth moving to some, from what their first batches show."""

from __future__ import annotations

import pytest

from stoker.feed.state.trial import MAX_WATCH_FRAC, MIN_BATCH_S, MIN_REST_S, TRIAL_BATCHES, Trial

MIB = 1 << 20


def trial(*, length: int | None = 1000, keeps_random: bool = True, free_bytes: int = 0, watch_s: float = 1e-4) -> Trial:
    return Trial(length=length, keeps_random=keeps_random, free_bytes=free_bytes, watch_s=watch_s)


def made(
    on: Trial, seconds: float = 0.02, *, batch_bytes: int = 100, drew: bool = False, is_plain: bool = True,
    changed: bool = False, watch_s: float = 1e-4,
) -> None:  # fmt: skip
    """A batch is made, and looked at where that is wanted."""
    on.timed(seconds)
    if not on.is_quick:
        on.seen(batch_bytes=batch_bytes, drew=drew, is_plain=is_plain, changed=changed, watch_s=watch_s)


def test_three_slow_plain_batches_move() -> None:
    found = trial()
    for _ in range(TRIAL_BATCHES):
        assert not found.over
        made(found)
    assert found.over
    assert not found.verdict()


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ({"drew": True}, "draw from the main random stream"),
        ({"is_plain": False}, "a transfer between processes would change"),
        ({"changed": True}, "changes from batch to batch"),
        ({"drew": True, "changed": True}, "draw from the main random stream"),
    ],
)
def test_what_a_batch_shows_ends_it_at_once(seen: dict[str, bool], words: str) -> None:
    found = trial()
    made(found, **seen)
    assert found.over
    assert words in found.verdict()


def test_draws_do_no_harm_where_samples_have_seeds() -> None:
    found = trial(keeps_random=False)
    for _ in range(TRIAL_BATCHES):
        made(found, drew=True)
    assert not found.verdict()


def test_a_quick_first_batch_ends_it_without_a_look() -> None:
    found = trial()
    made(found, MIN_BATCH_S / 2, drew=True)
    assert found.over
    assert found.verdict() == "a batch takes 2.5 ms to make: nothing to gain"


def test_the_median_batch_counts() -> None:
    slow_start, slow_middle = trial(), trial()
    for seconds in (1.0, MIN_BATCH_S / 2, MIN_BATCH_S / 2):
        made(slow_start, seconds)
    assert "nothing to gain" in slow_start.verdict()
    for seconds in (2 * MIN_BATCH_S, MIN_BATCH_S / 2, 2 * MIN_BATCH_S):
        made(slow_middle, seconds)
    assert not slow_middle.verdict()


@pytest.mark.parametrize(("batches", "moves"), [(1, False), (2, True)])
def test_the_rest_must_be_worth_it(batches: int, moves: bool) -> None:
    seconds = MIN_REST_S / 1.5
    found = trial(length=TRIAL_BATCHES + batches)
    for _ in range(TRIAL_BATCHES):
        made(found, seconds)
    assert bool(found.verdict()) is not moves
    assert moves or "too short to gain" in found.verdict()


def test_without_a_length_there_may_be_any_number() -> None:
    found = trial(length=None)
    for _ in range(TRIAL_BATCHES):
        made(found)
    assert not found.verdict()


@pytest.mark.parametrize(("looks", "moves"), [([1.0, 1.0, 1.0], False), ([1.0, 1e-4, 1.0], True)])
def test_the_quickest_look_counts(looks: list[float], moves: bool) -> None:
    found = trial(watch_s=1.0)
    for watch_s in looks:
        made(found, 0.02, watch_s=watch_s)
    assert bool(found.verdict()) is not moves
    assert moves or "of 20 ms a batch" in found.verdict()
    assert MAX_WATCH_FRAC * 0.02 > 1e-4


def test_batches_that_are_too_large_to_be_made_twice_stay() -> None:
    found = trial(free_bytes=100 * MIB)
    for size in (1, 40, 1):
        made(found, batch_bytes=size * MIB)
    assert "its batches of 40.0 MiB are too large" in found.verdict()


def test_giving_up_ends_it() -> None:
    found = trial()
    found.give_up("stoker failed to look at its batches")
    assert found.over
    assert found.verdict() == "stoker failed to look at its batches"

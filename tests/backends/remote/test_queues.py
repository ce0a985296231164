"""Windows of a crew's queue: what is left out, and that shares are those of the time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.backends.remote.brokering import SeenQueue
from stoker.backends.remote.queues import LEAST_STEPS, WINDOW_S, QueueTally
from stoker.feed.scaling import Observation

SEEN = Observation(
    now_s=0.0, workers=4, depth=2, steps=5, items=5, starved_frac=0.4, input_wait_frac=0.3, blocked_frac=0.2,
    step_s=0.05, item_wall_s=0.1, item_cpu_s=0.1, batch_bytes=1, worker_bytes=1, handover_frac=0.1, away=3,
)  # fmt: skip


def windows(seen: list[Observation]) -> list[SeenQueue]:
    tally = QueueTally()
    return [found for each in seen if (found := tally.add(each)) is not None]


def every_quarter(count: int, begin_s: float = 0.0, **changed: object) -> list[Observation]:
    return [replace(SEEN, now_s=begin_s + 0.25 * number, **changed) for number in range(count)]  # type: ignore[arg-type]


def test_a_window_says_what_its_observations_say() -> None:
    (found, *_) = windows(every_quarter(40))
    assert (found.near, found.away) == (1, 3)
    assert found.batches_per_s == pytest.approx(20.0)
    assert found.starved_frac == pytest.approx(0.4)
    assert found.blocked_frac == pytest.approx(0.2)
    assert found.computing_frac == pytest.approx(0.8)  # what stoker itself takes is no lack of workers


def test_a_change_of_workers_begins_anew_and_pauses_do_not_count() -> None:
    assert not windows(every_quarter(8) + every_quarter(8, 2.0, workers=5) + every_quarter(8, 4.0, away=2))
    paused = [
        replace(each, steps=0, waiting=False) if number % 2 else each for number, each in enumerate(every_quarter(60))
    ]
    found = windows(paused)
    assert found
    assert found[0].batches_per_s == pytest.approx(20.0)


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.floats(0, 1), st.floats(0, 1), st.booleans(), st.integers(1, 2)), max_size=80
    )
)
def test_shares_are_shares(rows: list[tuple[int, float, float, bool, int]]) -> None:
    seen = [
        replace(
            SEEN, now_s=0.25 * number, steps=steps, starved_frac=starved, input_wait_frac=waited, handover_frac=0.0,
            waiting=waiting, workers=3 + workers // 2,
        )
        for number, (steps, starved, waited, waiting, workers) in enumerate(rows)
    ]  # fmt: skip
    found = windows(seen)
    for each in found:
        assert each.batches_per_s >= 0.0
        assert all(0.0 <= frac <= 1.0 + 1e-9 for frac in (each.starved_frac, each.blocked_frac, each.computing_frac))
    assert len(found) <= len(rows) * 0.25 / WINDOW_S
    assert LEAST_STEPS * len(found) <= sum(row[0] for row in rows)

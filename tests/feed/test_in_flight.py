"""The room for a loader's batches: never more memory than torch needs, never so little that it stands still."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.feed.state.in_flight import LARGE_BYTES, MOST_FRAC, OWN_BYTES, Room, fit, torchs_batches

MIB = 1 << 20
GROUNDS = {
    "wanted": st.integers(1, 256),
    "workers": st.integers(1, 64),
    "lookahead": st.integers(1, 256),
    "batch_bytes": st.integers(0, 1 << 34),
    "beside_frac": st.floats(0.01, 1.0),
    "program_bytes": st.integers(0, 1 << 36),
    "free_bytes": st.integers(0, 1 << 38),
}


def room(**changes: Any) -> Room:
    usual: dict[str, Any] = {
        "wanted": 4, "workers": 2, "lookahead": 4, "batch_bytes": 40 * MIB, "beside_frac": 1.0,
        "program_bytes": 150 * MIB, "free_bytes": 0,
    }  # fmt: skip
    return fit(**(usual | changes))


class TestExamples:
    def test_small_batches_are_not_bounded(self) -> None:
        assert room(batch_bytes=LARGE_BYTES - 1) == Room(4, None)

    def test_samples_that_go_straight_to_their_slot_leave_room_for_slots_that_stay(self) -> None:
        assert room(beside_frac=1 / 32) == Room(3, 5)

    def test_slots_of_large_samples_give_their_memory_back(self) -> None:
        assert room(batch_bytes=240 * MIB) == Room(4, 0)

    def test_a_large_program_hides_some_more(self) -> None:
        assert room(program_bytes=4 << 30) == Room(4, None)

    def test_where_torchs_batches_would_not_fit_there_are_fewer(self) -> None:
        assert room(free_bytes=160 * MIB).in_flight == 2
        assert room(free_bytes=1).in_flight == 1


@given(st.fixed_dictionaries(GROUNDS))
def test_something_is_always_in_flight_and_never_more_than_wanted(grounds: dict[str, Any]) -> None:
    assert 1 <= fit(**grounds).in_flight <= grounds["wanted"]


@given(st.fixed_dictionaries(GROUNDS))
def test_slots_that_stay_keep_the_promise(grounds: dict[str, Any]) -> None:
    """What slots and workers hold at their peak is at most 1.15 of what torch's loader holds, the program included."""
    found = fit(**grounds)
    if grounds["batch_bytes"] < LARGE_BYTES or found.num_warm == 0:
        return
    batch = grounds["batch_bytes"]
    held = found.in_flight + 2 + grounds["workers"] * grounds["beside_frac"]
    torchs = torchs_batches(grounds["workers"]) * batch + grounds["program_bytes"]
    assert held * batch + OWN_BYTES + grounds["program_bytes"] <= MOST_FRAC * torchs * (1 + 1e-9)


@given(st.fixed_dictionaries(GROUNDS), st.integers(0, 1 << 38))
def test_more_free_memory_never_means_less_in_flight(grounds: dict[str, Any], extra: int) -> None:
    if grounds["free_bytes"]:  # 0: unknown
        more = {**grounds, "free_bytes": grounds["free_bytes"] + extra}
        assert fit(**grounds).in_flight <= fit(**more).in_flight


@pytest.mark.parametrize("workers", [1, 2, 4, 8])
def test_every_worker_has_something_to_do_where_memory_is_not_short(workers: int) -> None:
    for beside_frac in (1.0, 0.1):
        assert (
            room(workers=workers, lookahead=2 * workers, wanted=2 * workers, beside_frac=beside_frac).in_flight
            >= workers
        )

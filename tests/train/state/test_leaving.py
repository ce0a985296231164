"""When a rank that is through may leave, and the wait for others between two services of one process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.errors import ExchangeError
from stoker.train.state.leaving import longest_wait_s, may_leave, wait_for_others
from stoker.train.state.messages import RankStanding
from stoker.train.state.service import PartService

standings = st.builds(
    RankStanding,
    forwards=st.integers(0, 3),
    version=st.integers(0, 3),
    is_in_step=st.booleans(),
    is_done=st.booleans(),
)


@given(standings, standings)
def test_of_two_ranks_in_any_standing_not_both_wait_for_good(one: RankStanding, other: RankStanding) -> None:
    done = RankStanding(one.forwards, one.version, one.is_in_step, True)
    # The other one is through as well, waits in a pass for the first, or may still come to an end by itself.
    assert may_leave(done, other) == (other.is_done or other.forwards > one.forwards)
    assert may_leave(done, None)


def test_a_pass_without_a_step_bounds_the_wait() -> None:
    assert longest_wait_s(RankStanding(3, 2, True, True), 1800.0) == 60.0
    assert longest_wait_s(RankStanding(3, 3, False, True), 1800.0) == 1800.0


class Together:
    """Two ranks of one process, each in a thread."""

    def __init__(self, rank: int, meeting: threading.Barrier, said: dict[int, bytes]) -> None:
        self.rank, self.ranks = rank, range(2)
        self._meeting, self._said = meeting, said

    def gather(self, data: bytes) -> list[bytes]:
        self._said[self.rank] = data
        self._meeting.wait(20)
        found = [self._said[rank] for rank in self.ranks]
        self._meeting.wait(20)
        return found


class Held(dict[str, bytes]):
    """Parts of one rank."""

    def part(self, name: str) -> memoryview:
        return memoryview(self[name])


@pytest.fixture
def services() -> Iterator[Sequence[PartService]]:
    meeting, said, made = threading.Barrier(2), dict[int, bytes](), dict[int, PartService]()

    def make(rank: int) -> None:
        assembly = Together(rank, meeting, said)
        held = Held({"weight": bytes([rank]) * 100_000, "nothing": b""})
        made[rank] = PartService(assembly, held, timeout_s=20, find_address=lambda: "127.0.0.1")

    threads = [threading.Thread(target=make, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    yield [made[0], made[1]]
    for service in made.values():
        service.close()


def test_parts_come_whole_and_missing_ones_are_named(services: Sequence[PartService]) -> None:
    assert services[0].fetch(1, "weight") == bytes([1]) * 100_000
    assert services[1].fetch(0, "weight") == bytes([0]) * 100_000
    assert services[1].fetch(0, "nothing") == b""
    with pytest.raises(ExchangeError, match="it has no `bias`"):
        services[0].fetch(1, "bias")
    assert services[0].fetch(1, "weight") == bytes([1]) * 100_000  # after the refusal


def test_a_part_is_served_at_the_version_of_the_rank_that_asks(services: Sequence[PartService]) -> None:
    services[0].change_weights()
    later = threading.Timer(0.2, services[1].change_weights)
    later.start()
    assert services[0].fetch(1, "weight") == bytes([1]) * 100_000
    assert services[1].standing.version == 1
    later.join()
    services[1].change_weights()
    with pytest.raises(ExchangeError, match="it has changed its weights 2 times, and the rank that asks 1 times"):
        services[0].fetch(1, "weight")


def test_a_rank_waits_until_the_other_is_through_or_gone(services: Sequence[PartService]) -> None:
    services[1].end_program()
    waiting = threading.Thread(target=wait_for_others, args=(services[1], 20.0))
    waiting.start()
    assert services[0].fetch(1, "weight") == bytes([1]) * 100_000
    assert waiting.is_alive()
    services[0].end_program()
    waiting.join(20)
    assert not waiting.is_alive()
    services[1].close()
    wait_for_others(services[0], 20.0)
    with pytest.raises(ExchangeError, match="`rank 1` must serve its part of `weight`, and does not"):
        services[0].fetch(1, "weight")


def test_a_rank_whose_peer_waits_for_it_leaves(services: Sequence[PartService]) -> None:
    services[0].begin_forward()
    services[1].end_program()
    wait_for_others(services[1], 20.0)


def test_closing_ends_all_threads(services: Sequence[PartService]) -> None:
    services[0].fetch(1, "weight")
    for service in services:
        service.close()
    until = time.monotonic() + 10
    while any(thread.name.startswith("stoker-exchange") for thread in threading.enumerate()):
        assert time.monotonic() < until
        time.sleep(0.01)

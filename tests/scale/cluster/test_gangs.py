"""Gangs: all GPUs or none, in the order of a discipline, with backfill; only resumable ones are preempted."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.scale.cluster.gangs import DISCIPLINES, Gang, GangConfig, GangQueue
from stoker.scale.cluster.rooms import Need, Rooms


def queue(config: GangConfig | None = None, nodes: int = 2) -> GangQueue:
    return GangQueue(Rooms([4] * nodes, [16.0] * nodes), config or GangConfig())


def gang(name: int, gpus: int, **more: object) -> Gang:
    return Gang(name=name, need=Need(gpus, float(more.pop("cpus", 0.0))), arrived_s=float(name), **more)  # type: ignore[arg-type]


def started(found: GangQueue, now_s: float = 100.0) -> list[int]:
    return [each.gang.name for each in found.start(now_s)]


@given(
    st.lists(st.tuples(st.integers(1, 12), st.integers(0, 8), st.booleans(), st.booleans()), max_size=30),
    st.sampled_from(DISCIPLINES),
    st.booleans(),
)
def test_rooms_are_never_over_full_and_all_run_in_the_end(
    rows: list[tuple[int, int, bool, bool]], discipline: str, spread: bool
) -> None:
    rooms = Rooms([4, 4, 4], [8.0] * 3, spread=spread)
    found = GangQueue(rooms, GangConfig(discipline=discipline))  # type: ignore[arg-type]
    running: dict[int, Gang] = {}
    waiting: set[int] = set()
    ended: set[int] = set()
    pushed: set[int] = set()

    def go_on(now_s: float) -> None:
        for each in found.start(now_s):
            for gone in each.preempted:
                assert gone.resumable
                del running[gone.name]
                waiting.add(gone.name)
            assert sum(seat.gpus for seat in each.seats) == each.gang.need.gpus
            waiting.discard(each.gang.name)
            running[each.gang.name] = each.gang
            assert rooms.gpus.min() >= 0
            assert rooms.cpus.min() >= -1e-6
            assert rooms.free_gpus == 12 - sum(one.need.gpus for one in running.values())

    for name, (gpus, cpus, resumable, ends) in enumerate(rows):
        one = gang(name, gpus, cpus=cpus, resumable=resumable, left_s=float(gpus * 10))
        if found.refused(one.need):
            with pytest.raises(ValueError, match="must fit the empty cluster"):
                found.push(one, float(name))
            continue
        found.push(one, float(name))
        pushed.add(name)
        waiting.add(name)
        go_on(float(name))
        if ends and running:
            done = next(iter(running))
            del running[done]
            found.ended(done)
            ended.add(done)
            go_on(float(name) + 0.5)
    while running:
        done = next(iter(running))
        del running[done]
        found.ended(done)
        ended.add(done)
        go_on(1e3)
    assert ended == pushed
    assert len(found) == 0
    assert rooms.gpus.tolist() == [4, 4, 4]


def test_backfill_and_its_end() -> None:
    for patience_s, expected in ((math.inf, [0, 2]), (50.0, [0])):
        found = queue(GangConfig(patience_s=patience_s), nodes=1)
        for each in (gang(0, 3), gang(1, 4), gang(2, 1)):
            found.push(each, 0.0)
        assert started(found) == expected
    found.ended(0)
    assert started(found) == [1]


def test_a_gang_stays_on_one_node_or_takes_whole_ones() -> None:
    found = queue()
    for each in (gang(0, 1), gang(1, 3), gang(2, 4), gang(3, 8)):
        found.push(each, 0.0)
    assert started(found) == [0, 1, 2]
    assert found.cause(Need(8)) == "no GPU"
    found.ended(2)
    found.ended(0)
    assert found.cause(Need(8)) == "no GPU"
    assert found.refused(Need(9)) == "9 GPUs are more than the 8 of all nodes"


def test_why_gangs_wait() -> None:
    found = queue()
    for each in (gang(0, 2, cpus=16.0), gang(1, 3)):
        found.push(each, 0.0)
    assert started(found) == [0, 1]
    assert found.cause(Need(4)) == "no GPU"
    assert found.cause(Need(3)) == "fragmentation"
    assert found.cause(Need(2, 17.0)) == "CPUs short"
    assert "CPUs" in found.refused(Need(1, 17.0))


def test_shortest_first_preempts_only_who_can_resume() -> None:
    for resumable, expected in ((False, []), (True, [1])):
        found = queue(GangConfig(discipline="srtf"), nodes=1)
        found.push(gang(0, 4, left_s=1000.0, resumable=resumable), 0.0)
        assert started(found) == [0]
        found.push(gang(1, 4, left_s=10.0), 1.0)
        assert started(found) == expected
        assert len(found) == 1


def test_attained_service_demotes() -> None:
    found = queue(GangConfig(discipline="2d-las"), nodes=1)
    found.push(gang(0, 4, attained_s=1e5, resumable=True), 0.0)
    found.push(gang(1, 4), 0.0)
    assert started(found) == [1]


def test_priority_goes_before_arrival() -> None:
    found = queue(nodes=1)
    found.push(gang(0, 4), 0.0)
    found.push(gang(1, 4, priority=1), 0.0)
    assert started(found) == [1]


def test_a_gang_may_have_the_cpus_of_a_node_with_fewer_gpus() -> None:
    rooms = Rooms([8, 1], [4.0, 64.0])
    assert rooms.lacks(Need(1, 32.0)) == ""
    assert "32 CPUs with its GPUs are more than the 4 of a node with 2 GPUs" in rooms.lacks(Need(2, 32.0))

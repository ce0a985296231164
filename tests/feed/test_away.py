"""Workers on other machines, on paper: near ones first, one loss for all that a machine takes, no sample to blame."""

from __future__ import annotations

from typing import Any

from stoker.core.errors import WorkerStartError
from stoker.feed.program import WorkerIdentity
from stoker.feed.scaling import Decision
from stoker.feed.shell.gateway import Gone
from stoker.feed.state import events as ev
from stoker.feed.state import instructions as do
from stoker.feed.state.machine import MAX_LOSSES
from tests.feed.world import World


def decided(world: World, workers: int, away: int) -> None:
    world.send(ev.Decided(Decision(workers=workers, depth=2, reason="", away=away)))


def places(world: World) -> list[bool]:
    return [worker.away for worker in world.ledger.active()]


class TestPlaces:
    def test_near_ones_are_started_first(self) -> None:
        world = World(workers=1)
        world.log.clear()
        decided(world, 4, away=2)
        assert [spawn.away for spawn in world.log if isinstance(spawn, do.Spawn)] == [False, True, True]

    def test_each_place_is_drained_by_itself(self) -> None:
        world = World(workers=1)
        decided(world, 4, away=2)
        decided(world, 3, away=2)
        assert sorted(places(world)) == [False, True, True]
        decided(world, 2, away=0)
        assert places(world) == [False, False], "a near one was missing"

    def test_only_the_place_may_change(self) -> None:
        world = World(workers=2)
        decided(world, 2, away=1)
        assert sorted(places(world)) == [False, True]

    def test_where_there_is_no_room_the_others_go_on(self) -> None:
        world = World(workers=1)
        world.refuses = "no machine"
        decided(world, 3, away=2)
        assert world.raised is None
        assert not [given for given in world.log if isinstance(given, do.Notice)]
        world.refuses = ""
        world.finish()
        assert world.delivered == list(range(world.length))

    def test_where_memory_bounds_who_is_at_work_near_ones_are(self) -> None:
        world = World(workers=1)
        world.send(ev.Bounded(64, None, 2))
        decided(world, 4, away=2)
        assert places(world) == [False, False]


class TestALostMachine:
    def test_twelve_workers_of_it_are_one_loss(self) -> None:
        world = World(workers=1, length=60, lookahead=60)
        decided(world, 1 + MAX_LOSSES, away=MAX_LOSSES)
        world.send(ev.Wanted())
        world.die(*[number for number, worker in world.ledger.workers.items() if worker.away])
        assert world.raised is None
        world.finish()
        assert world.delivered == list(range(world.length))

    def test_twelve_losses_one_by_one_end_the_run(self) -> None:
        world = World(workers=1, length=60, lookahead=60)
        for _ in range(MAX_LOSSES):
            decided(world, 2, away=1)
            world.send(ev.Wanted())
            world.die(*[number for number, worker in world.ledger.workers.items() if worker.away])
        assert world.raised is not None
        assert not isinstance(world.raised, WorkerStartError)


class TestWhatAGatewaySays:
    def test_a_lost_machine_blames_nothing_and_a_death_there_its_sample(self) -> None:
        lost = Gone(3, 0, "a:7071", "`a:7071` is lost").departure(expected=False)
        assert (lost.blames, lost.was_killed, lost.whereabouts.seq) == (False, False, -1)
        died = Gone(3, 4711, "a:7071", "killed by signal: SIGKILL", 7, 2, blames=True).departure(expected=False)
        assert died.blames
        assert (died.whereabouts.seq, died.whereabouts.position) == (7, 2)
        assert died.place == "a:7071"


def test_a_process_id_of_another_machine_never_reaches_this_one(monkeypatch: Any) -> None:
    """A crew ends a worker elsewhere through its gateway, although its number is that of a process here."""
    import os

    from stoker.feed.shell.crew import Crew, WorkerHandle

    ended: list[int] = []

    class Asked:
        def end(self, number: int) -> None:
            ended.append(number)

    monkeypatch.setattr(os, "kill", lambda *_: ended.append(-1))
    crew = object.__new__(Crew)
    crew._gateway = Asked()  # type: ignore[assignment]
    identity = WorkerIdentity(number=5, worker_id=0, board_slot=0)
    crew.kill(WorkerHandle(identity, channel=None, away=True), "it hangs", with_stack=True)  # type: ignore[arg-type]
    assert ended == [5]

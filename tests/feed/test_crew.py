"""A crew of real processes: nothing arrives twice, slots come back, and the watch tells who no longer works."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import default_collate

from stoker.backends.local import LocalBackend
from stoker.feed.program import Iteration, Program, Tier, WorkItem
from stoker.feed.purity.tiers import reuse_fingerprint
from stoker.feed.shell.crew import Crew, Message, WorkerHandle
from stoker.feed.shell.processes import process_state
from stoker.feed.shell.watch import Watch
from stoker.feed.state import instructions as do
from stoker.feed.transport.board import Departure
from stoker.feed.transport.messages import MessageKind, unpack_ready

pytestmark = pytest.mark.integration
ITERATION = Iteration(ordinal=0, base_seed=5, tier=Tier.ELASTIC)
TIMEOUT_S = 20.0


class Numbers:
    """Sample -1 waits for a line in a pipe; -2 computes without end; -3 continues the template, its parent."""

    def __init__(self, pipe: Path) -> None:
        self.pipe = str(pipe)

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == -1:
            with open(self.pipe) as file:
                file.readline()
        while index == -2:
            pass
        if index == -3:
            os.kill(os.getppid(), signal.SIGCONT)
        return torch.tensor([index])


class Bench:
    """A crew, and what came from it so far."""

    def __init__(self, tmp_path: Path) -> None:
        self.pipe = tmp_path / "pipe"
        os.mkfifo(self.pipe)
        self.program = Program(
            dataset=Numbers(self.pipe),
            collate_fn=default_collate,
            worker_init_fn=None,
            is_iterable=False,
            auto_collation=True,
            drop_last=False,
            declared_workers=2,
        )
        self.returned: list[tuple[int, int]] = []
        self.crew = Crew(
            LocalBackend(), self.program, torch.multiprocessing, ITERATION, lambda *slot: self.returned.append(slot)
        )
        self.arrived: list[Message | Departure] = []
        self.seq = 0

    def spawn(self) -> WorkerHandle:
        member = self.crew.spawn(0)
        assert member is not None
        return member

    def lease(self, member: WorkerHandle, *indices: int, slot: int = -1) -> int:
        seq, work = self.seq, WorkItem(indices=list(indices), start=0)
        self.crew.lease(do.Lease(member.identity.number, seq, seq, 0 if slot >= 0 else -1, slot, work))
        self.seq += 1
        return seq

    def until(self, done: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + TIMEOUT_S
        while not done():
            assert time.monotonic() < deadline_s, "in time"
            self.arrived += self.crew.poll(0.05)

    def ready(self) -> list[int]:
        frames = [arrival.frame for arrival in self.arrived if isinstance(arrival, Message)]
        return [unpack_ready(frame.body)[0].seq for frame in frames if frame.kind is MessageKind.READY]

    def departures(self) -> list[Departure]:
        return [arrival for arrival in self.arrived if isinstance(arrival, Departure)]

    def working_on(self, member: WorkerHandle, seq: int) -> None:
        self.until(lambda: member.pid != 0 and self.crew.whereabouts(member).seq == seq)
        self.until(lambda: self.crew.whereabouts(member).position == 0)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.crew.close()


class TestArrivals:
    def test_what_comes_during_the_wait_for_a_fingerprint_comes_once_and_in_order(self, bench: Bench) -> None:
        """Each twice would free a slot twice, and two batches would share it."""
        bench.spawn()
        member = bench.spawn()  # the first that the template forks
        bench.until(lambda: member.pid != 0)
        os.kill(bench.crew.template_pid, signal.SIGSTOP)  # so that its answer comes after the batches
        seqs = [bench.lease(member, n) for n in [*range(40), -3, 40]]
        bench.crew.ask_fingerprint()
        known = reuse_fingerprint(bench.program)
        assert known is not None
        # Sixteen bytes of the objects; what follows depends on the environment, where pytest names the phase of a test.
        assert bench.crew.fingerprint(TIMEOUT_S)[:16] == known[:16]
        bench.until(lambda: len(bench.ready()) >= len(seqs))
        bench.arrived += bench.crew.poll(0.2)
        assert bench.ready() == seqs

    def test_leases_that_had_not_begun_are_returned(self, bench: Bench) -> None:
        member = bench.spawn()
        first = bench.lease(member, -1)
        bench.working_on(member, first)
        waiting = [bench.lease(member, n, slot=n) for n in range(3)]
        bench.crew.forget()
        bench.pipe.write_text("go\n")
        bench.until(lambda: first in bench.ready() and len(bench.arrived) == 1 + len(waiting))
        kinds = [arrival.frame.kind for arrival in bench.arrived if isinstance(arrival, Message)]
        assert kinds.count(MessageKind.RETURNED) == 3

    def test_a_death_is_reported_after_all_that_was_sent_and_blames_the_sample(self, bench: Bench) -> None:
        member = bench.spawn()
        done = bench.lease(member, 1)
        bench.until(lambda: done in bench.ready())
        stuck = bench.lease(member, -1)
        bench.working_on(member, stuck)
        os.kill(member.pid, signal.SIGKILL)
        bench.until(lambda: bool(bench.departures()))
        (departure,) = bench.departures()
        assert departure.worker == member.identity.number
        assert "SIGKILL" in departure.cause
        assert (departure.whereabouts.seq, departure.whereabouts.position) == (stuck, 0)
        assert not departure.expected
        assert bench.arrived[-1] is departure

    def test_a_worker_told_to_stop_finishes_what_it_has(self, bench: Bench) -> None:
        member = bench.spawn()
        seqs = [bench.lease(member, n) for n in range(5)]
        bench.crew.stop(member)
        bench.until(lambda: bool(bench.departures()))
        assert bench.ready() == seqs
        assert bench.departures()[0].expected


class TestSlots:
    def test_closing_gives_back_what_nobody_answered(self, bench: Bench) -> None:
        member = bench.spawn()
        worker = bench.crew.ledger.born(member.identity.number, 0)
        for slot in (4, 7):
            bench.crew.ledger.lease(worker, None, 0, slot)
        bench.working_on(member, bench.lease(member, -1, slot=4))
        pids = [member.pid, bench.crew.template_pid]
        bench.crew.close()
        assert sorted(bench.returned) == [(0, 4), (0, 7)]
        assert all(process_state(pid) in ("", "Z") for pid in pids), "gone before their slots are used again"


class TestWatch:
    """Time is an argument: the processes are real, the clock is not."""

    def test_a_worker_that_waits_without_cpu_time_is_silent(self, bench: Bench) -> None:
        member = bench.spawn()
        bench.working_on(member, bench.lease(member, -1))
        watch, number = Watch(stall_timeout_s=10.0), member.identity.number
        now_s = 1000.0
        suspects: list[Any] = []
        while not suspects and now_s < 1012.0:
            suspects = watch.look(bench.crew, now_s, {number})
            now_s += 0.5
        assert suspects[0].member is member
        assert "silent for 10 s" in suspects[0].cause
        assert 1009.9 <= now_s - 0.5 <= 1011.1

    def test_a_worker_that_computes_is_not(self, bench: Bench) -> None:
        member = bench.spawn()
        bench.working_on(member, bench.lease(member, -2))
        watch = Watch(stall_timeout_s=1.0)
        for step in range(6):
            before = _cpu_ticks(member.pid)
            while _cpu_ticks(member.pid) < before + 2:
                bench.arrived += bench.crew.poll(0.01)
            assert watch.look(bench.crew, 1000.0 + step, {member.identity.number}) == []

    def test_a_worker_without_a_lease_is_left_alone(self, bench: Bench) -> None:
        member = bench.spawn()
        bench.until(lambda: member.pid != 0)
        watch = Watch(stall_timeout_s=1.0)
        assert all(watch.look(bench.crew, 1000.0 + step, set()) == [] for step in range(5))

    def test_a_stopped_worker_is_given_a_second(self, bench: Bench) -> None:
        member = bench.spawn()
        bench.working_on(member, bench.lease(member, -1))
        os.kill(member.pid, signal.SIGSTOP)
        bench.until(lambda: process_state(member.pid) == "T")
        watch, holding = Watch(stall_timeout_s=60.0), {member.identity.number}
        assert watch.look(bench.crew, 1000.0, holding) == []
        assert watch.look(bench.crew, 1000.6, holding) == []
        (suspect,) = watch.look(bench.crew, 1001.2, holding)
        assert suspect.is_stopped
        assert "SIGSTOP" in suspect.cause
        bench.crew.kill(member, suspect.cause, with_stack=True)
        bench.until(lambda: bool(bench.departures()))
        assert "__getitem__" in bench.departures()[0].stack

    def test_one_that_is_continued_in_time_is_forgiven(self, bench: Bench) -> None:
        member = bench.spawn()
        bench.working_on(member, bench.lease(member, -1))
        watch, holding = Watch(stall_timeout_s=60.0), {member.identity.number}
        os.kill(member.pid, signal.SIGSTOP)
        bench.until(lambda: process_state(member.pid) == "T")
        assert watch.look(bench.crew, 1000.0, holding) == []
        os.kill(member.pid, signal.SIGCONT)
        bench.until(lambda: process_state(member.pid) != "T")
        assert watch.look(bench.crew, 1000.6, holding) == []
        assert watch.look(bench.crew, 1001.2, holding) == []

    def test_silence_while_nobody_looked_counts_for_nothing(self, bench: Bench) -> None:
        """Ctrl-Z stops all processes together."""
        member = bench.spawn()
        bench.working_on(member, bench.lease(member, -1))
        watch, holding = Watch(stall_timeout_s=5.0), {member.identity.number}
        assert watch.look(bench.crew, 1000.0, holding) == []
        assert watch.look(bench.crew, 5000.0, holding) == []
        assert watch.look(bench.crew, 5000.6, holding) == []


def _cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])

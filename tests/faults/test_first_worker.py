"""The first data worker is a child of the training process: same life, same end as its siblings, waited for here."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from tests.faults.data import Leaky, Numbers, PrivateRng, Shards
from tests.faults.harness import (
    END_S,
    Trial,
    below,
    descriptors,
    is_alive,
    read,
    state_of,
    workers_below,
)
from tests.faults.serve import assert_same, driven, in_child, loader_of, plain, served
from tests.waiting import await_that

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

KINDS: dict[str, Callable[[], DataLoader[Any]]] = {
    "elastic": lambda: loader_of(Numbers(64, 0.0005), shuffle=True),
    "pinned": lambda: loader_of(PrivateRng(64, 0.0005), shuffle=True),
    "shards": lambda: loader_of(Shards(64, 0.0005)),
}


def parent_of(pid: int) -> int:
    return int(read(f"/proc/{pid}/stat").rpartition(b")")[2].split()[1])


def own_workers(pid: int) -> list[int]:
    """Workers whose parent is the training process itself."""
    return [worker for worker in workers_below(pid) if parent_of(worker) == pid]


def children() -> list[int]:
    """All children of this process, those that ended and were not waited for among them."""
    return [int(word) for word in read(f"/proc/self/task/{os.getpid()}/children").split()]


def ended() -> list[int]:
    """Zombies among them."""
    return [pid for pid in children() if state_of(pid) == "Z"]


def first_of(iterator: Any) -> int:
    return int(iterator.feed.engine.crew.members[0].pid)


@pytest.mark.parametrize("kind", KINDS)
class TestParent:
    def test_is_the_training_process(self, kind: str) -> None:
        with served(workers=2):
            iterator = iter(KINDS[kind]())
            assert parent_of(first_of(iterator)) == os.getpid()
            next(iterator)
            await_that("the other", lambda: len(workers_below(os.getpid())) > 1)
            assert own_workers(os.getpid()) == [first_of(iterator)]
            del iterator

    def test_waits_for_it(self, kind: str) -> None:
        """After an epoch, one left early, an iterator that was never asked, and one that was closed."""
        with served(workers=2):
            before = len(children())
            loader = KINDS[kind]()
            list(loader)
            for step, _ in enumerate(loader):
                if step == 2:
                    break
            iter(loader)
            iterator: Any = iter(loader)
            next(iterator)
            iterator._shutdown_workers()
            assert ended() == []
            del iterator, loader
            gc.collect()
        assert len(children()) == before

    @pytest.mark.parametrize("step", [0, 1, 6])
    def test_replaces_it_and_leaves_no_zombie(self, kind: str, step: int) -> None:
        killed: list[int] = []

        def strike(now: int, iterator: Any) -> None:
            if now == step:
                killed.append(first_of(iterator))
                os.kill(killed[0], signal.SIGKILL)

        expected = plain(KINDS[kind])
        with served(workers=2) as record:
            assert_same(driven(KINDS[kind], strike), expected)
            assert ended() == []
        assert [event.pid for event in record.lost()] == killed
        assert "SIGKILL" in record.lost()[0].cause

    def test_ends_it_with_the_template(self, kind: str) -> None:
        killed: list[int] = []

        def strike(step: int, iterator: Any) -> None:
            if step == 5:
                killed.extend([first_of(iterator), iterator.feed.engine.crew.template_pid])
                os.kill(killed[1], signal.SIGKILL)

        expected = plain(KINDS[kind])
        with served(workers=2):
            assert_same(driven(KINDS[kind], strike), expected)
            assert len(killed) == 2
            assert not any(is_alive(pid) for pid in killed)
            assert ended() == []


def test_recycled_at_its_memory_budget() -> None:
    with served(workers=2, worker_memory_bytes=60 << 20) as record:
        loader = loader_of(Leaky(400, 0.002), shuffle=True)
        iterator = iter(loader)
        first = first_of(iterator)
        assert len(list(iterator)) == 100
        assert not is_alive(first)
        assert ended() == []
    assert any("near its budget" in text for text in record.notices())
    assert record.lost() == []


def test_stopped_is_replaced_with_its_stack() -> None:
    def strike(step: int, iterator: Any) -> None:
        if step == 4:
            os.kill(first_of(iterator), signal.SIGSTOP)

    expected = plain(KINDS["elastic"])
    with served(workers=2) as record:
        assert_same(driven(KINDS["elastic"], strike), expected)
        assert ended() == []
    (event,) = record.lost()
    assert "SIGSTOP" in event.cause
    assert "worker/loop.py" in event.stack


def test_a_program_that_takes_every_exit_status() -> None:
    """A handler of SIGCHLD as servers have it: the worker's end is noticed all the same."""

    def check() -> str:
        taken: list[int] = []

        def take(*_: object) -> None:
            try:
                while (pid := os.waitpid(-1, os.WNOHANG)[0]) > 0:
                    taken.append(pid)
            except ChildProcessError:
                pass

        expected = plain(KINDS["elastic"], epochs=2)
        signal.signal(signal.SIGCHLD, take)
        struck: list[int] = []

        def strike(step: int, iterator: Any) -> None:
            if step == 3:
                struck.append(first_of(iterator))
                os.kill(struck[0], signal.SIGKILL)
                await_that("its status is taken", lambda: struck[0] in taken)

        with served(workers=2) as record:
            assert_same(driven(KINDS["elastic"], strike, epochs=2), expected)
        (event,) = record.lost()
        assert event.pid == struck[0]
        return event.cause

    assert in_child(check) == "ended with a status that the program took"


def test_a_thread_that_ends_takes_no_worker_along() -> None:
    """A worker dies with the thread that forked it: so none is forked from a thread that may end."""
    iterators: list[Any] = []
    with served(workers=2) as record:
        loader = loader_of(Numbers(64))
        thread = threading.Thread(target=lambda: iterators.append(iter(loader)))
        thread.start()
        thread.join()
        assert own_workers(os.getpid()) == []
        found = list(iterators.pop())
        assert record.lost() == []
    assert_same(found, list(loader_of(Numbers(64))))


def test_spawn_leaves_it_to_the_template() -> None:
    with served(workers=2):
        iterator = iter(loader_of(Numbers(16), multiprocessing_context="spawn"))
        assert own_workers(os.getpid()) == []
        found = list(iterator)
    assert_same(found, list(loader_of(Numbers(16))))


class TestDeathOfTheTrainingProcess:
    def test_lets_it_finish_its_file(self, tmp_path: Path) -> None:
        with Trial(tmp_path, "writing.py") as trial:
            trial.expect("at work")
            os.kill(trial.pid, signal.SIGKILL)
            await_that("no process left", lambda: not trial.processes(), END_S)
            assert (tmp_path / "written").read_text() == "whole\n"

    @pytest.mark.parametrize("template_too", [False, True])
    def test_ends_it_where_it_hangs(self, template_too: bool, tmp_path: Path) -> None:
        with Trial(tmp_path, "writing.py", "hang") as trial:
            trial.expect("at work")
            await_that("a template", trial.templates)
            for pid in [*(trial.templates() if template_too else []), trial.pid]:
                os.kill(pid, signal.SIGKILL)
            trial.check_nothing_left()


@pytest.mark.slow("forty crews start and end")
def test_changed_datasets_leave_nothing() -> None:
    """Forty epochs, each of another dataset, so each with another first worker."""

    def check() -> tuple[int, int]:
        with served(workers=2):
            dataset = Numbers(16)
            loader = loader_of(dataset)
            first: set[int] = set()
            after_ten = 0
            for epoch in range(40):
                dataset.length = 16 + epoch % 7
                iterator = iter(loader)
                first.add(first_of(iterator))
                assert len(list(iterator)) == -(-dataset.length // 4)
                del iterator
                assert len(ended()) <= 2  # those of the crew before this one, on its way out
                if epoch == 10:
                    after_ten = len(descriptors(os.getpid()))
            assert len(first) == 40
            assert len(below(os.getpid())) <= 8
            return after_ten, len(descriptors(os.getpid()))

    before, after = in_child(check, 50.0)
    assert after <= before + 3

"""Workers and templates that stop or hang instead of dying."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader

from stoker.core.errors import SampleKillsWorkerError
from tests.faults.data import Harmful, Numbers, PrivateRng, Shards
from tests.faults.harness import is_alive, state_of, template_below, workers_below
from tests.faults.serve import assert_same, driven, loader_of, plain, served
from tests.waiting import await_that

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

KINDS: dict[str, Callable[[], DataLoader[Any]]] = {
    "elastic": lambda: loader_of(Numbers(64, 0.002), shuffle=True),
    "pinned": lambda: loader_of(PrivateRng(64, 0.002), shuffle=True),
    "shards": lambda: loader_of(Shards(64, 0.002)),
}


def stop(pids: list[int]) -> None:
    for pid in pids:
        assert pid > 0
        os.kill(pid, signal.SIGSTOP)
    for pid in pids:
        await_that("stopped or ended", lambda pid=pid: state_of(pid) in ("T", "Z", ""))


def hang() -> None:
    """Waits for a lock that nobody will release."""
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


class TestStopped:
    @pytest.mark.parametrize(
        ("kind", "how_many"), [("elastic", "one"), ("pinned", "one"), ("elastic", "all"), ("shards", "all")]
    )
    def test_workers(self, kind: str, how_many: str) -> None:
        stopped: list[int] = []

        def strike(step: int, iterator: Any) -> None:
            if step == 4:
                pids = [member.pid for member in iterator.feed.engine.crew.active()]
                stopped.extend(pids if how_many == "all" else pids[:1])
                stop(stopped)

        expected = plain(KINDS[kind])
        begun = time.monotonic()
        with served(workers=2) as record:
            assert_same(driven(KINDS[kind], strike), expected)
            assert not any(is_alive(pid) for pid in stopped)
        assert time.monotonic() - begun < 30.0  # a few seconds, on a machine that is busy with others
        lost = [event for event in record.lost() if event.pid in stopped]
        assert {event.pid for event in lost} == set(stopped)
        for event in lost:
            assert "SIGSTOP" in event.cause
            assert "worker/loop.py" in event.stack, event.stack

    def test_that_was_continued_in_time_is_kept(self) -> None:
        def strike(step: int, iterator: Any) -> None:
            if step == 4:
                pids = [member.pid for member in iterator.feed.engine.crew.active()]
                stop(pids)
                for pid in pids:
                    os.kill(pid, signal.SIGCONT)

        expected = plain(KINDS["elastic"])
        with served(workers=2) as record:
            assert_same(driven(KINDS["elastic"], strike), expected)
        assert record.lost() == []

    @pytest.mark.parametrize("kind", ["elastic", "shards"])
    def test_template_when_a_worker_is_needed(self, kind: str) -> None:
        def strike(step: int, _: object) -> None:
            if step == 4:
                template = int(await_that("a template", lambda: template_below(os.getpid())))
                stop([template])
                for pid in workers_below(os.getpid()):
                    os.kill(pid, signal.SIGKILL)

        expected = plain(KINDS[kind])
        with served(workers=2):
            assert_same(driven(KINDS[kind], strike), expected)

    def test_template_at_the_end_of_an_epoch(self) -> None:
        def strike(step: int, _: object) -> None:
            if step == 16:
                stop([template_below(os.getpid())])

        expected = plain(KINDS["elastic"], epochs=2)
        with served(workers=2):
            assert_same(driven(KINDS["elastic"], strike, epochs=2), expected)


class TestHanging:
    @pytest.mark.parametrize("workers", [1, 2])
    def test_once(self, workers: int, tmp_path: Path) -> None:
        def make() -> DataLoader[Any]:
            return loader_of(Harmful(48, {21: hang}, tmp_path))

        with served(workers=workers, stall_timeout_s=1.0) as record:
            found = driven(make)
        assert_same(found, plain(lambda: loader_of(Numbers(48))))
        (event,) = record.lost()
        assert "silent" in event.cause
        assert "in hang" in event.stack
        assert "data.py" in event.stack

    def test_twice(self) -> None:
        with served(workers=2, stall_timeout_s=1.0) as record, pytest.raises(SampleKillsWorkerError) as caught:
            driven(lambda: loader_of(Harmful(48, {21: hang})))
        assert caught.value.fields["index"] == 21
        assert caught.value.fields["path"] == "photographs/21.jpg"
        assert f":21:{caught.value.fields['seed']}" in str(caught.value)
        assert "--replay" in str(caught.value)
        assert len(record.lost()) == 2

    def test_in_the_first_batch(self, tmp_path: Path) -> None:
        def make() -> DataLoader[Any]:
            return loader_of(Harmful(24, {1: hang}, tmp_path))

        with served(workers=2, stall_timeout_s=1.0):
            found = driven(make)
        assert_same(found, plain(lambda: loader_of(Numbers(24))))

    def test_that_uses_the_processor_is_left_alone(self) -> None:
        def busy() -> None:
            end = time.process_time() + 1.5
            while time.process_time() < end:
                pass

        with served(workers=1, stall_timeout_s=0.7) as record:
            driven(lambda: loader_of(Harmful(16, {9: busy}), num_workers=1))
        assert record.lost() == []

    def test_collate_function(self) -> None:
        def collate(samples: list[Any]) -> Any:
            hang()

        with (
            served(workers=1, stall_timeout_s=0.7),
            pytest.raises(SampleKillsWorkerError, match="the batch of indices"),
        ):
            driven(lambda: loader_of(Numbers(16), collate_fn=collate, num_workers=1))

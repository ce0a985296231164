"""Workers and templates killed at every point of an iteration: batches, order and random streams as in plain python."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from stoker.core.errors import SampleKillsWorkerError, StreamNotRepeatableError, WorkerLostError
from tests.faults.data import Harmful, Numbers, PrivateRng, RandomPinned, Shards, die, once
from tests.faults.harness import Trial, is_alive, template_below, workers_below
from tests.faults.serve import assert_same, driven, loader_of, plain, served
from tests.waiting import await_that

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

Make = Callable[[], DataLoader[Any]]
KINDS: dict[str, Make] = {
    "elastic": lambda: loader_of(Numbers(64, 0.0005), shuffle=True),
    "elastic, drawn lazily": lambda: loader_of(Numbers(64, 0.0005), shuffle=True, generator=torch.Generator()),
    "pinned": lambda: loader_of(PrivateRng(64, 0.0005), shuffle=True),
    "pinned, random": lambda: loader_of(RandomPinned(64, 0.0005), shuffle=True),
    "shards": lambda: loader_of(Shards(64, 0.0005)),
    "persistent": lambda: loader_of(Numbers(40, 0.0005), shuffle=True, persistent_workers=True),
}
TIER = {"pinned": "pinned", "pinned, random": "pinned", "shards": "pinned"}


class FatalBackwards(Numbers):
    """Ends a worker that makes sample i right after sample i + 1, as only the probe does; just one, with a folder."""

    def __init__(self, length: int, folder: Path | None) -> None:
        super().__init__(length)
        self.folder = folder
        self.last = -1

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.last - 1 and (self.folder is None or once(self.folder, "death")):
            die()
        self.last = index
        return super().__getitem__(index)


def kill(pids: list[int]) -> None:
    for pid in pids:
        assert pid > 0  # 0 is every process of the test's own group
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def a_template() -> int:
    """The template, which gives itself a name a moment after its start."""
    return int(await_that("a template", lambda: template_below(os.getpid())))


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class TestWorkers:
    def test_at_random(self, kind: str) -> None:
        choose = random.Random(kind)
        strikes = set(choose.sample(range(3, 16), 4))

        def strike(step: int, _: object) -> None:
            if step in strikes and (pids := workers_below(os.getpid())):
                kill([choose.choice(pids)])

        expected = plain(KINDS[kind], epochs=2)
        with served(workers=2) as record:
            assert_same(driven(KINDS[kind], strike, epochs=2), expected)
        assert record.tiers()[-1] == TIER.get(kind, "elastic")
        assert record.lost()

    def test_all_at_once(self, kind: str) -> None:
        def strike(step: int, _: object) -> None:
            if step in (1, 9):
                kill(workers_below(os.getpid()))

        expected = plain(KINDS[kind])
        with served(workers=2) as record:
            assert_same(driven(KINDS[kind], strike), expected)
        assert record.lost()  # how many were born, or still at work, when the strike came is a matter of load

    def test_right_at_iter(self, kind: str) -> None:
        def strike(step: int, _: object) -> None:
            if step == 0:
                kill(workers_below(os.getpid()))

        expected = plain(KINDS[kind])
        with served(workers=2):
            assert_same(driven(KINDS[kind], strike), expected)

    def test_in_the_middle_of_a_sample(self, tmp_path: Path) -> None:
        def make() -> DataLoader[Any]:
            return loader_of(Harmful(64, {5: die, 40: die, 41: die, 60: die}, tmp_path), shuffle=True)

        with served(workers=3) as record:
            found = driven(make)
        assert len(record.lost()) == 4
        assert all("SIGKILL" in event.cause for event in record.lost())
        assert_same(found, plain(lambda: loader_of(Numbers(64), shuffle=True)))

    @pytest.mark.parametrize("which", ["throwaway", "both"])
    def test_during_the_probe(self, which: str) -> None:
        def strike(step: int, _: object) -> None:
            if step == 0:
                pids = await_that("worker and throwaway", lambda: (p := workers_below(os.getpid()))[1:] and p)
                kill(pids[-1:] if which == "throwaway" else pids)

        def make() -> DataLoader[Any]:
            return loader_of(Numbers(48, 0.02), num_workers=1, batch_size=8)

        expected = plain(make)
        with served(workers=1) as record:
            assert_same(driven(make, strike), expected)
        assert set(record.tiers()) == {"elastic"}
        assert "data worker was lost while samples were probed" in " ".join(record.notices())

    @pytest.mark.parametrize("times", ["once", "always"])
    def test_by_the_probe(self, times: str, tmp_path: Path) -> None:
        def make() -> DataLoader[Any]:
            return loader_of(FatalBackwards(48, tmp_path if times == "once" else None))

        expected = plain(make)
        with served(workers=2) as record:
            assert_same(driven(make), expected)
        opened = record.opened()[-1]
        assert opened.tier == ("elastic" if times == "once" else "pinned")
        assert ("lost twice while its samples were probed" in opened.reason) == (times == "always")

    def test_each_that_is_born(self) -> None:
        def make() -> DataLoader[Any]:
            return loader_of(Numbers(48), worker_init_fn=lambda _: die())

        with served(workers=2), pytest.raises(WorkerLostError, match=r"in a row.*SIGKILL.*--workers 0"):
            driven(make)

    def test_that_closed_its_descriptors(self) -> None:
        def close_all() -> None:
            os.closerange(3, 256)

        harmful = Harmful(48, {7: close_all})
        with served(workers=2) as record, pytest.raises((SampleKillsWorkerError, WorkerLostError)):
            driven(lambda: loader_of(harmful))
        assert len(record.lost()) >= 2  # it goes on until it notices, perhaps past the sample that did it

    def test_stream_that_does_not_repeat(self, tmp_path: Path) -> None:
        class Moody(Shards):
            def __iter__(self) -> Any:
                torch.manual_seed(int.from_bytes(os.urandom(4), "little"))
                return super().__iter__()

        def strike(step: int, _: object) -> None:
            if step == 6:
                kill(workers_below(os.getpid()))

        with served(workers=2), pytest.raises(StreamNotRepeatableError, match="Make the stream repeatable"):
            driven(lambda: loader_of(Moody(64, 0.0005)), strike)


# Under plain python a worker that dies amid a sample may as well be told as a ConnectionResetError.
@pytest.mark.parametrize(("how", "served"), [("segfault", True), ("exit", True), ("start", True), ("start", False)])
@pytest.mark.slow("a program starts its loader anew until it is through")
def test_a_program_that_restarts_on_torchs_error(how: str, served: bool, tmp_path: Path) -> None:
    with Trial(tmp_path, "restarting.py", how, served=served) as trial:
        assert trial.finish() == 0, trial.errors()
    assert trial.lines[-1] == "sum 496"
    assert set(trial.lines[:-1]) == {"restarted"}


class TestTemplate:
    @pytest.mark.parametrize("step", [0, 5])
    def test_killed(self, kind: str, step: int) -> None:
        def strike(now: int, _: object) -> None:
            if now == step:
                template = a_template()
                kill([template])
                await_that("the template is gone", lambda: not is_alive(template))

        expected = plain(KINDS[kind])
        with served(workers=2):
            assert_same(driven(KINDS[kind], strike), expected)

    def test_killed_between_epochs(self, kind: str) -> None:
        expected = plain(KINDS[kind], epochs=3)
        with served(workers=2):
            torch.manual_seed(11)
            loader = KINDS[kind]()
            found: list[Any] = []
            for _ in range(3):
                found += list(loader)
                kill([template for template in [template_below(os.getpid())] if template])  # pinned ones end by then
            assert_same([*found, torch.rand(3)], expected)

    def test_with_its_workers(self, kind: str) -> None:
        def strike(step: int, _: object) -> None:
            if step in (2, 7):
                kill([a_template(), *workers_below(os.getpid())])

        expected = plain(KINDS[kind])
        with served(workers=2):
            assert_same(driven(KINDS[kind], strike), expected)

"""Samples that end their data worker: named, left out or replaced, up to a cap."""

from __future__ import annotations

import ctypes
import faulthandler
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Subset

from stoker.core.errors import SampleKillsWorkerError
from stoker.feed.replay import Replay
from tests.faults.data import Harmful, Numbers, PrivateRng, Shards, die, in_worker
from tests.faults.harness import template_below, workers_below
from tests.faults.serve import Forking, assert_same, driven, in_child, loader_of, plain, served
from tests.waiting import await_that

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]


def leave() -> None:
    os._exit(3)


def segfault() -> None:
    faulthandler.disable()  # pytest has put it on, and it would write to the terminal
    ctypes.string_at(0)


WAYS: dict[str, tuple[Callable[[], None], str]] = {
    "killed": (die, "killed by signal: SIGKILL"),
    "exit": (leave, "exited with status 3"),
    "segfault": (segfault, "killed by signal: SIGSEGV"),
}


class HarmfulPinned(PrivateRng):
    """Pinned by its own generator; sample 13 ends its worker."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 13 and in_worker():
            die()
        return super().__getitem__(index)


class FatalElsewhere(Numbers):
    """Sample 100 ends every process but the training process, which must not be asked for it."""

    def __init__(self, length: int, cost_s: float) -> None:
        super().__init__(length, cost_s)
        self.home = os.getpid()
        self.changed = False

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 100:
            assert os.getpid() != self.home
            die()
        return super().__getitem__(index)


class HarmfulBatches(Numbers):
    """Makes whole batches."""

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        if 13 in indices and in_worker():
            die()
        return [self[index] for index in indices]


class HarmfulShards(Shards):
    """The stream's worker 1 dies at its third sample."""

    def __iter__(self) -> Any:
        for number, sample in enumerate(super().__iter__()):
            info = torch.utils.data.get_worker_info()
            if number == 2 and info is not None and info.id == 1:
                die()
            yield sample


def batches_of(length: int, without: set[int], size: int = 4) -> list[torch.Tensor]:
    numbers = Numbers(length)
    rows = [[numbers[i] for i in range(first, first + size) if i not in without] for first in range(0, length, size)]
    return [torch.stack(row) for row in rows]


class TestRaise:
    @pytest.mark.parametrize("way", WAYS)
    def test_names_the_sample(self, way: str, capfd: pytest.CaptureFixture[str]) -> None:
        harm, cause = WAYS[way]
        with served(workers=2) as record, pytest.raises(SampleKillsWorkerError, match=r"sample 13 .*twice") as caught:
            driven(lambda: loader_of(Harmful(48, {13: harm}), shuffle=True))
        error = caught.value
        assert cause in str(error)
        assert error.fields["index"] == 13
        assert error.fields["path"] == "photographs/13.jpg"
        words = shlex.split(str(error.fields["replay"]))
        assert Replay.parse(words[words.index("--replay") + 1]) == Replay(
            loader=0, index=13, seed=int(str(error.fields["seed"]))
        )
        assert len(record.lost()) == 2
        assert capfd.readouterr().err == ""  # nothing from the workers

    def test_path_through_a_subset(self) -> None:
        subset = Subset(Harmful(48, {13: die}), list(range(10, 40)))
        with served(workers=2), pytest.raises(SampleKillsWorkerError) as caught:
            driven(lambda: loader_of(subset))
        assert (caught.value.fields["index"], caught.value.fields["path"]) == (3, "photographs/13.jpg")

    def test_the_batches_before_it_arrive(self) -> None:
        taken: list[Any] = []
        with served(workers=2), pytest.raises(SampleKillsWorkerError):
            taken.extend(loader_of(Harmful(48, {30: die})))
        assert len(taken) >= 3
        assert_same(taken, batches_of(48, set())[: len(taken)])

    @pytest.mark.parametrize(
        ("dataset", "match"),
        [
            (HarmfulPinned(48), "sample 13 "),
            (HarmfulBatches(48), "batch of indices"),
            (HarmfulShards(48), "a sample of the stream"),
        ],
        ids=["pinned", "whole batches", "stream"],
    )
    def test_other_kinds(self, dataset: Any, match: str) -> None:
        with served(workers=2), pytest.raises(SampleKillsWorkerError, match=match):
            driven(lambda: loader_of(dataset))

    def test_without_batches(self) -> None:
        with served(workers=2), pytest.raises(SampleKillsWorkerError) as caught:
            driven(lambda: loader_of(Harmful(24, {13: die}), batch_size=None))
        assert caught.value.fields["index"] == 13

    def test_in_the_first_batch(self) -> None:
        with served(workers=2), pytest.raises(SampleKillsWorkerError) as caught:
            driven(lambda: loader_of(Harmful(24, {0: die})))
        assert caught.value.fields["index"] == 0

    def test_leaves_the_loader_usable(self, tmp_path: Path) -> None:
        harm: dict[int, Callable[[], object]] = {13: die}
        with served(workers=2):
            loader = loader_of(Harmful(48, harm))
            with pytest.raises(SampleKillsWorkerError):
                list(loader)
            harm.clear()
            assert_same(list(loader), batches_of(48, set()))
        assert workers_below(os.getpid()) == []


class TestLeaveOut:
    def test_skip(self) -> None:
        with served(workers=2, on_bad_sample="skip") as record:
            found = list(loader_of(Harmful(48, {13: die, 14: segfault, 40: leave})))
        assert_same(found, batches_of(48, {13, 14, 40}))
        assert sorted((event.index, event.path) for event in record.quarantined()) == [
            ("13", "photographs/13.jpg"),
            ("14", "photographs/14.jpg"),
            ("40", "photographs/40.jpg"),
        ]
        assert {event.action for event in record.quarantined()} == {"skip"}

    def test_replace(self) -> None:
        with served(workers=2, on_bad_sample="replace"):
            found = list(loader_of(Harmful(48, {13: die, 15: die})))
        expected = batches_of(48, set())
        good = expected[3].clone()
        expected[3] = torch.stack([good[0], good[2], good[2], good[0]])
        assert_same(found, expected)

    def test_shuffled(self) -> None:
        def make() -> DataLoader[Any]:
            return loader_of(Harmful(48, {13: die}), shuffle=True)

        bad = Numbers(48)[13]
        expected = plain(lambda: loader_of(Numbers(48), shuffle=True))
        with served(workers=2, on_bad_sample="skip"):
            found = driven(make)
        kept = [batch[[not torch.equal(row, bad) for row in batch]] for batch in expected[:-1]]
        assert_same(found, [*kept, expected[-1]])

    def test_pinned(self) -> None:
        with served(workers=2, on_bad_sample="skip") as record:
            found = list(loader_of(HarmfulPinned(48)))
        assert [len(batch) for batch in found] == [4, 4, 4, 3, *[4] * 8]
        assert len(record.quarantined()) == 1

    def test_pinned_whose_worker_dies_later(self) -> None:
        def strike(step: int, _: object) -> None:
            if step == 8:
                for pid in workers_below(os.getpid()):
                    os.kill(pid, 9)

        with served(workers=2, on_bad_sample="skip") as record:
            found = driven(lambda: loader_of(HarmfulPinned(48, 0.001)), strike)
        assert [len(batch) for batch in found[:-1]] == [4, 4, 4, 3, *[4] * 8]
        assert len(record.quarantined()) == 1

    def test_is_remembered_in_the_next_epochs(self) -> None:
        with served(workers=2, on_bad_sample="skip", bad_sample_cap=1) as record:
            loader = loader_of(Harmful(24, {13: die}))
            for _ in range(3):
                assert_same(list(loader), batches_of(24, {13}))
        assert len(record.lost()) == 2
        assert len(record.quarantined()) == 1

    @pytest.mark.parametrize("policy", ["skip", "replace"])
    def test_holds_where_no_worker_can_be_started(self, policy: str) -> None:
        def check() -> list[str]:
            os.fork = forking = Forking(99)
            loader = loader_of(Harmful(96, {80: die}, cost_s=0.002))

            def strike(step: int, _: object) -> None:
                if step == 24 + 2:
                    forking.left, forking.in_training = 0, False
                    os.kill(await_that("a template", lambda: template_below(os.getpid())), 9)

            with served(workers=2, on_bad_sample=policy) as record:
                found = driven(lambda: loader, strike, epochs=2)
            assert_same(found[24:48], found[:24])
            return record.notices()

        assert "the rest of the iteration is made in the training process" in " ".join(in_child(check))

    @pytest.mark.slow("two epochs of samples that take long enough for the loader to move")
    @pytest.mark.parametrize("policy", ["skip", "replace"])
    @pytest.mark.parametrize("when", [1, 24], ids=["not drawn yet", "drawn"])
    def test_holds_in_a_moved_loader_that_comes_back(self, when: int, policy: str) -> None:
        dataset = FatalElsewhere(240, 0.015)  # slow enough for watching it to cost little beside it, on any machine

        def change(step: int, _: object) -> None:
            dataset.changed = step >= 60 + when

        with served(workers=2, on_bad_sample=policy) as record:
            loader = loader_of(dataset, num_workers=0)
            found = driven(lambda: loader, change, epochs=2)
        assert record.tiers()[-1] == "elastic"
        assert "from here on batches are made in this process" in " ".join(record.notices())
        assert_same(found[60:120], found[:60])

    def test_cap(self) -> None:
        with (
            served(workers=2, on_bad_sample="skip", bad_sample_cap=2) as record,
            pytest.raises(SampleKillsWorkerError, match="2 samples were left out already"),
        ):
            list(loader_of(Harmful(48, {5: die, 13: die, 40: die})))
        assert len(record.quarantined()) == 2

    @pytest.mark.parametrize("policy", ["skip", "replace"])
    def test_nothing_would_be_left_of_the_batch(self, policy: str) -> None:
        harm: dict[int, Callable[[], object]] = dict.fromkeys((12, 13, 14, 15), die)
        with (
            served(workers=2, on_bad_sample=policy) as record,
            pytest.raises(SampleKillsWorkerError, match="no other sample"),
        ):
            list(loader_of(Harmful(48, harm)))
        assert len(record.quarantined()) == 3

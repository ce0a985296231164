"""Torch's own workers and ours in turns, with real processes: same batches, same errors, nothing left."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from stoker.records import events, versus
from tests.faults.harness import below, named, read, workers_below
from tests.faults.serve import Record, served
from tests.warm.programs import servers

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]


class Slow(Dataset[torch.Tensor]):
    """Samples that wait, as if for storage."""

    def __init__(self, length: int = 240, wait_s: float = 0.0, bad: int = -1) -> None:
        self.length, self.wait_s, self.bad = length, wait_s, bad

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.wait_s)
        if index == self.bad:
            raise ValueError(f"sample {index} is broken")
        return torch.full((8,), float(index))


class Drawing(Slow):
    """Samples with random numbers under the program's own seeds."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.rand(8)


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(600))


def seed_worker(number: int) -> None:
    random.seed(number)


def digest_of(loader: DataLoader[Any], epochs: int = 1) -> str:
    """Of all batches, in their order, and of what the main random stream gives meanwhile."""
    found = hashlib.sha256()
    for _ in range(epochs):
        for batch in loader:
            found.update(batch.numpy().tobytes())
            found.update(torch.rand(1).numpy().tobytes())
    return found.hexdigest()


def pairs_in(record: Record) -> list[versus.Pair]:
    return [event.pair for event in record.all if isinstance(event, events.PairCompared)]


def ends_in(record: Record) -> list[str]:
    return [event.reason for event in record.all if isinstance(event, events.ComparisonEnded)]


def loader_under(dataset: Dataset[Any], **options: Any) -> DataLoader[Any]:
    torch.manual_seed(3)
    return DataLoader(dataset, **{"batch_size": 2, "num_workers": 1, "shuffle": True, **options})


@pytest.mark.parametrize(
    ("options", "epochs"),
    [({"num_workers": 2}, 1), ({"batch_size": 8, "persistent_workers": True}, 6)],
    ids=["one long epoch", "persistent, over epochs"],
)
def test_batches_and_random_stream_are_those_of_plain_python(options: dict[str, Any], epochs: int) -> None:
    plain = digest_of(loader_under(Slow(), **options), epochs)
    with served(versus_plain=120) as record:
        assert digest_of(loader_under(Slow(), **options), epochs) == plain
    assert len(pairs_in(record)) == 5
    assert ends_in(record) == [""]
    assert workers_below(os.getpid()) == torchs_workers() == []


@pytest.mark.slow("samples that wait, made one after another first, then in rounds of both sides")
def test_a_loader_without_workers_is_compared_once_it_is_moved() -> None:
    dataset = Slow(640, wait_s=0.01)
    plain = digest_of(loader_under(dataset, num_workers=0))
    with served(versus_plain=288) as record:  # rounds that are long enough for 8 workers
        assert digest_of(loader_under(dataset, num_workers=0)) == plain
    found = versus.compare(pairs_in(record))
    assert found is not None
    assert found.plain.workers_to == 0 < found.ours.workers_to
    assert any(text.endswith(versus.describe(found)) for text in record.notices())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: loader_under(Stream(), shuffle=False), "shards of its iterable dataset"),
        (lambda: loader_under(Slow(), in_order=False), "`in_order=False`"),
        (lambda: loader_under(Slow(30)), "an iteration of 15 batches is too short for two rounds of 10"),
        (lambda: loader_under(Drawing(), worker_init_fn=seed_worker), "two sets of workers would have made"),
        (lambda: loader_under(Slow(), num_workers=0), "it is served as torch serves it"),
    ],
    ids=["iterable", "any order", "short", "pinned by the probe", "in process"],
)
def test_what_cannot_be_compared_is_served_as_ever(make: Callable[[], DataLoader[Any]], words: str) -> None:
    arrange = sorted if "in_order" in words else list
    with served() as record:
        plain = arrange(batch.tolist() for batch in make())
    with served(versus_plain=120) as record:
        assert arrange(batch.tolist() for batch in make()) == plain
    assert pairs_in(record) == []
    assert len(ends_in(record)) == 1
    assert words in ends_in(record)[0]
    assert len([text for text in record.notices() if "not compared with plain python" in text]) == 1


def is_pythons(pid: int) -> bool:
    """Whether it is a process that multiprocessing, or starting programs under test, keeps once a test has used it."""
    command = read(f"/proc/{pid}/cmdline")
    return any(name in command for name in (b"resource_tracker", b"multiprocessing.forkserver", b"from tests.warm"))


def torchs_workers() -> list[int]:
    ours = {*workers_below(os.getpid()), *named("stoker_template", below(os.getpid())), *servers()}
    return [pid for pid in below(os.getpid()) if pid not in ours and not is_pythons(pid)]


def test_errors_of_the_dataset_are_the_programs_on_both_sides() -> None:
    with served(versus_plain=120):
        for bad in (2, 24):  # in a round of ours, in one of torch's
            loader = loader_under(Slow(bad=bad), shuffle=False)
            with pytest.raises(ValueError, match=f"sample {bad} is broken") as caught:
                list(loader)
            assert "in DataLoader worker process 0" in str(caught.value)


def rest_after_a_kill(batches: Iterator[Any]) -> list[Any]:
    """A signal handler of torch's tells of it, at any line from the kill on."""
    os.kill(torchs_workers()[0], signal.SIGKILL)
    return list(batches)


def test_a_worker_that_is_killed() -> None:
    with served(versus_plain=120) as record:
        loader = loader_under(Slow(wait_s=0.01), num_workers=2)
        batches = iter(loader)
        for _ in range(3):
            next(batches)
        os.kill(workers_below(os.getpid())[0], signal.SIGKILL)  # of ours: made again
        for _ in range(11):
            next(batches)
        with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid"):
            rest_after_a_kill(batches)  # of torch's: as under plain python
        del batches
    assert [event.cause for event in record.lost()] != []

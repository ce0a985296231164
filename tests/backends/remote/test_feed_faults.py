"""The feed's faults with workers on another machine: batches, order and streams as in plain python; bad samples named.

Of `tests/faults` what concerns data workers; templates, forks, memory and folders are each machine's own matter.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from stoker.core.errors import SampleKillsWorkerError
from tests.backends.remote.hosts import Host, opened
from tests.faults.data import Harmful, Numbers, die
from tests.faults.serve import assert_same, driven, loader_of, plain, served

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(150),
    pytest.mark.slow("epochs are so long that another machine has a part in them"),
]
SAMPLES, COST_S, EPOCHS = 1200, 0.004, 2
BAD = 900
KINDS: dict[str, Callable[[Numbers], DataLoader[Any]]] = {
    "elastic": lambda data: loader_of(data, shuffle=True),
    "drawn lazily": lambda data: loader_of(data, shuffle=True, generator=torch.Generator()),
    "persistent": lambda data: loader_of(data, shuffle=True, persistent_workers=True),
}


def fail() -> None:
    raise LookupError("this sample is bad")


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    with opened(tmp_path_factory.mktemp("host")) as host:
        yield host


@pytest.mark.parametrize("kind", KINDS)
def test_workers_there_killed_at_random(host: Host, kind: str) -> None:
    expected = plain(lambda: KINDS[kind](Numbers(SAMPLES)), EPOCHS)
    drawn, killed = random.Random(kind), list[int]()

    def strike(step: int, iterator: Any) -> None:
        workers = host.workers()
        if step % 20 == 0 and workers:
            killed.append(drawn.choice(workers))
            os.kill(killed[-1], signal.SIGKILL)
        elif not killed and not workers:
            time.sleep(0.05)  # so that a host which loads slowly has a part in what is left

    with served(**host.settings) as record:
        found = driven(lambda: KINDS[kind](Numbers(SAMPLES, COST_S)), strike, EPOCHS)
    assert_same(found, expected)
    assert len(killed) > 3, "another machine had no part in it"
    assert not record.quarantined()


def test_a_sample_that_raises_does_so_here_as_well(host: Host) -> None:
    with served(**host.settings), pytest.raises(LookupError, match="this sample is bad"):
        driven(lambda: loader_of(Harmful(SAMPLES, {BAD: fail}, cost_s=COST_S)))


def test_a_sample_that_kills_its_workers_is_named(host: Host) -> None:
    with served(**host.settings) as record, pytest.raises(SampleKillsWorkerError, match=f"sample {BAD} .*twice"):
        driven(lambda: loader_of(Harmful(SAMPLES, {BAD: die}, cost_s=COST_S)))
    assert len(record.lost()) >= 2


def test_a_sample_that_kills_its_workers_is_left_out(host: Host) -> None:
    def make() -> DataLoader[Any]:
        return loader_of(Harmful(SAMPLES, {BAD: die}, cost_s=COST_S))

    with served(**host.settings, on_bad_sample="skip", bad_sample_cap=1) as record:
        found = driven(make)
    assert [event.index for event in record.quarantined()] == [str(BAD)]
    with served(workers=2, on_bad_sample="skip", bad_sample_cap=1):
        assert_same(found, driven(make))


def test_a_sample_that_kills_one_worker_is_made_again(host: Host, tmp_path: Path) -> None:
    expected = plain(lambda: loader_of(Numbers(SAMPLES)))
    with served(**host.settings) as record:
        assert_same(driven(lambda: loader_of(Harmful(SAMPLES, {BAD: die}, tmp_path, COST_S))), expected)
    assert len(record.lost()) == 1
    assert not record.quarantined()

"""Too few descriptors, too little memory, batches of any size: right batches, one clear line, no bus error.

Each runs in a forked child, so that limits stay there.
"""

from __future__ import annotations

import gc
import os
import resource
import tracemalloc  # noqa: F401 - pytest imports it late, when no descriptor is left
from collections.abc import Callable
from typing import Any

import pytest
import torch

from stoker.core.errors import WorkerStartError
from tests.faults.data import Leaky, Numbers, Shards, Sized, first_sample
from tests.faults.harness import descriptors
from tests.faults.serve import Forking, assert_same, driven, in_child, loader_of, plain, served

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

MIB = 1 << 20


def limited(limits: dict[int, int], check: Callable[[], Any]) -> Any:
    """Runs a check in a child under resource limits."""

    def run() -> Any:
        for kind, value in limits.items():
            resource.setrlimit(kind, (value, value))
        return check()

    return in_child(run)


def num_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def numbers(length: int = 64, **options: Any) -> Any:
    return loader_of(Numbers(length), shuffle=True, **options)


@pytest.mark.parametrize("spare", [0, 5, 12, 17, 24])
def test_descriptors(spare: int) -> None:
    """However few more descriptors may be opened: two epochs go through, or torch's own loader fails as well."""

    def fill_holes() -> None:
        """A limit is on numbers: only with all below the highest taken does it say how many more there can be."""
        highest = max(map(int, os.listdir("/proc/self/fd")))
        while os.dup(0) <= highest:
            pass

    def under_limit(drive: Callable[[], list[Any]]) -> list[Any] | str:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (num_descriptors() - 1 + spare, most[1]))
        try:
            return drive()
        except (OSError, RuntimeError) as error:
            return f"{type(error).__name__}: {error}"
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, most)

    def check() -> tuple[str, list[str]]:
        expected = plain(numbers, epochs=2)
        gc.collect()  # what torch's loader left open must not be freed under the limit
        fill_holes()
        before = num_descriptors()
        with served(workers=4) as record:
            found = under_limit(lambda: driven(numbers, epochs=2))
        if not isinstance(found, str):
            assert_same(found, expected)
            del found
            gc.collect()
            assert num_descriptors() <= before or record.notices(), descriptors(os.getpid())
            return "", record.notices()
        assert isinstance(under_limit(lambda: plain(numbers, epochs=2)), str)
        return found, record.notices()

    failure, notices = in_child(check)
    assert len(notices) <= 3, notices
    assert notices or spare > 5  # with some more, one worker may have made all before others are missed
    assert not failure or spare < 16


def test_descriptors_small_from_the_start() -> None:
    def check() -> list[str]:
        with served(workers=8) as record:
            for _ in range(3):
                assert_same(list(loader_of(Sized([100_000] * 64))), sized_batches([100_000] * 64))
        return record.notices()

    limited({resource.RLIMIT_NOFILE: num_descriptors() + 24}, check)


@pytest.mark.parametrize("most", [0, 1, 2, 3])
def test_processes(most: int) -> None:
    """Fewer workers than wanted: the iteration goes on all the same, and it is said.

    None but the first, which is not the template's to fork, is too few: the samples can't be probed, so two pinned
    workers are needed.
    """

    def check() -> list[str] | str:
        expected = plain(numbers)
        os.fork = Forking(most)
        with served(workers=4) as record:
            try:
                assert_same(driven(numbers), expected)
            except WorkerStartError as error:
                return str(error)
        return record.notices()

    notices = in_child(check)
    if most == 0:
        assert "no data worker could be started" in notices
        return
    assert any("temporarily unavailable" in text for text in notices), notices
    assert len(notices) <= 4, notices


def sized_batches(sizes: list[int]) -> list[torch.Tensor]:
    data = Sized(sizes)
    return [torch.stack([data[i] for i in range(first, first + 4)]) for first in range(0, len(sizes), 4)]


@pytest.mark.parametrize("limit", [20_000, 1 * MIB, 24 * MIB])
def test_file_size(limit: int) -> None:
    """Shared memory counts as a file: with a small limit slots can't be made."""

    def check() -> list[str]:
        with served(workers=2) as record:
            assert_same(list(loader_of(Sized([300_000] * 32))), sized_batches([300_000] * 32))
        return record.notices()

    notices = limited({resource.RLIMIT_FSIZE: limit}, check)
    assert notices, "it must be said"
    assert len(notices) <= 2


@pytest.mark.parametrize("extra", [64 * MIB, 512 * MIB])
def test_address_space(extra: int) -> None:
    def check() -> list[str]:
        expected = sized_batches([500_000] * 48)
        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + extra,) * 2)
        with served(workers=2) as record:
            assert_same(list(loader_of(Sized([500_000] * 48))), expected)
        return record.notices()

    in_child(check)


def test_slots_smaller_than_a_batch() -> None:
    with served(workers=2, slot_memory_bytes=MIB) as record:
        sizes = [2 * MIB] * 24
        assert_same(list(loader_of(Sized(sizes))), sized_batches(sizes))
    (notice,) = record.notices()
    assert "8.00 MiB" in notice
    assert "one by one" in notice


def test_sizes_from_a_kilobyte_to_fifty_megabytes() -> None:
    sizes = [1_000, 200, 3_000_000, 1_000, 50_000_000, 5_000, 40_000_000, 1, 1_000, 0, 50_000_000, 2_000]
    for settings in ({}, {"slot_memory_bytes": 200 * MIB}, {"slot_memory_bytes": MIB}):
        with served(workers=2, **settings) as record:
            for index, batch in enumerate(loader_of(Sized(sizes), batch_size=1, collate_fn=first_sample)):
                assert batch.shape == (sizes[index],)
                assert bool((batch == index % 251).all())
            assert record.lost() == []
        assert len(record.notices()) <= 2


def test_program_that_keeps_every_batch() -> None:
    expected = plain(lambda: loader_of(Sized([20_000] * 480)))
    with served(workers=2, slot_memory_bytes=4 * MIB):
        assert_same(driven(lambda: loader_of(Sized([20_000] * 480))), expected)


def test_program_that_keeps_every_other_batch() -> None:
    with served(workers=2, slot_memory_bytes=4 * MIB):
        kept = [batch for number, batch in enumerate(loader_of(Sized([40_000] * 320))) if number % 2]
    for number, batch in enumerate(kept):
        assert [int(row[0]) for row in batch] == [(8 * number + 4 + k) % 251 for k in range(4)]


class Texts(Numbers):
    """Long strings and bytes: nothing of them is a buffer."""

    def __getitem__(self, index: int) -> Any:
        return {"text": f"{index} " * 500_000, "raw": bytes([index]) * 4_000_000, "n": index}


@pytest.mark.parametrize("settings", [{}, {"slot_memory_bytes": 20 * MIB}], ids=["slots", "no slots"])
def test_batches_of_strings(settings: dict[str, int]) -> None:
    with served(workers=2, **settings) as record:
        for number, batch in enumerate(loader_of(Texts(24))):
            assert batch["text"] == [f"{4 * number + k} " * 500_000 for k in range(4)]
            assert batch["raw"] == [bytes([4 * number + k]) * 4_000_000 for k in range(4)]
            assert batch["n"].tolist() == [4 * number + k for k in range(4)]
    assert record.lost() == []


def test_strings_through_the_socket() -> None:
    """No shared memory at all: 25 MB frames."""

    def check() -> None:
        with served(workers=2):
            for number, batch in enumerate(loader_of(Texts(12))):
                assert batch["raw"] == [bytes([4 * number + k]) * 4_000_000 for k in range(4)]

    limited({resource.RLIMIT_FSIZE: 100_000}, check)


class TestMemoryBudget:
    def test_worker_that_leaks_is_recycled(self) -> None:
        with served(workers=2, worker_memory_bytes=60 * MIB) as record:
            found = driven(lambda: loader_of(Leaky(400, 0.002), shuffle=True))
        assert_same(found, plain(lambda: loader_of(Numbers(400), shuffle=True)))
        recycled = [text for text in record.notices() if "its budget" in text]
        assert recycled
        assert not [event for event in record.lost() if "SIGKILL" in event.cause]

    def test_budget_that_no_worker_can_keep(self) -> None:
        """A worker is larger than its budget from the start: it still makes items, and the run ends."""
        with served(workers=2, worker_memory_bytes=MIB) as record:
            found = driven(lambda: loader_of(Numbers(128, 0.01)))
        assert_same(found, plain(lambda: loader_of(Numbers(128))))
        assert len(record.notices()) < 12, record.notices()

    def test_pinned_worker_is_left_alone(self) -> None:
        class LeakyShards(Shards):
            def __iter__(self) -> Any:
                for sample in super().__iter__():
                    Leaky.kept.append(torch.ones(MIB))
                    yield sample

        expected = plain(lambda: loader_of(Shards(64)))
        with served(workers=2, worker_memory_bytes=20 * MIB) as record:
            assert_same(driven(lambda: loader_of(LeakyShards(64))), expected)
        assert record.lost() == []

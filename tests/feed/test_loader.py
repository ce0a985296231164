"""One loader from iteration to iteration, with real processes: new workers go on with the slots that there are."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from tests.faults.data import Numbers
from tests.faults.serve import assert_same, loader_of, served

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]


class Growing:
    """Its samples depend on the epoch, so workers of an earlier one can't be used again."""

    def __init__(self) -> None:
        self.epoch = 0

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((1000,), float(index + 100 * self.epoch))


def memory_of(tensor: torch.Tensor) -> str:
    """What the kernel calls the memory that a tensor lies in."""
    with open("/proc/self/maps") as file:
        for line in file:
            span, *_, name = line.split(maxsplit=5)
            begin, end = (int(edge, 16) for edge in span.split("-"))
            if begin <= tensor.data_ptr() < end:
                return name.strip()
    return ""


@pytest.mark.parametrize("tier", ["auto", "pinned"])
def test_new_workers_write_into_the_slots_of_earlier_ones(tier: Literal["auto", "pinned"]) -> None:
    with served(workers=2, tier=tier):
        dataset = Growing()
        loader = loader_of(dataset)
        list(loader)
        for epoch in (1, 2):
            dataset.epoch = epoch
            found: list[float] = []
            for batch in loader:
                found += batch[:, 0].tolist()
                assert "stoker-ring" in memory_of(batch)
            assert found == [float(index + 100 * epoch) for index in range(32)]


class Telling:
    """Its samples leave the number of the process that made them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> torch.Tensor:
        with self.path.open("a") as file:
            file.write(f"{os.getpid()} ")
        return torch.tensor(float(index))


def test_where_no_workers_are_wanted_every_later_epoch_is_made_in_the_program(tmp_path: Path) -> None:
    told = tmp_path / "makers"
    with served(workers=0) as record:
        loader = loader_of(Telling(told))
        list(loader)  # here samples are compared, in data workers
        for _ in range(2):
            told.write_text("")
            assert [float(number) for batch in loader for number in batch] == list(range(32))
            assert set(told.read_text().split()) == {str(os.getpid())}
    assert record.tiers()[-1] == "elastic"


def test_where_no_workers_are_wanted_samplers_draw_when_torchs_would() -> None:
    """Two of them begin before the first batch of either: each takes its seed from the program's stream inside iter."""

    def run() -> list[Any]:
        one, other = (loader_of(Numbers(40), shuffle=True) for _ in range(2))
        torch.manual_seed(7)
        return [[batch, torch.rand(1)] for _ in range(2) for pair in zip(one, other, strict=True) for batch in pair]

    expected = run()
    with served(workers=0):
        assert_same(run(), expected)


def test_where_no_workers_are_wanted_loaders_without_any_are_not_tried(tmp_path: Path) -> None:
    with served(workers=0) as record:
        list(loader_of(Telling(tmp_path / "makers"), num_workers=0))
    (*_, last) = record.opened()
    assert (last.tier, last.reason) == (
        "process", "declares no workers, and `--workers 0` makes its batches in the training process",
    )  # fmt: skip

"""One loader from iteration to iteration, with real processes: new workers go on with the slots that there are."""

from __future__ import annotations

from typing import Literal

import pytest
import torch

from tests.faults.serve import loader_of, served

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

"""Batches on their way to an accelerator: pinned, whole, and never overwritten while a copy is under way."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import tests.gpu.serving as serving

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(240)]


class Numbered(Dataset[tuple[torch.Tensor, int]]):
    """Sample i is filled with i."""

    def __init__(self, length: int, numel: int = 1 << 16) -> None:
        self.length = length
        self.numel = numel

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((self.numel,), float(index)), index


@pytest.mark.parametrize("pin", [True, False])
@pytest.mark.parametrize("workers", [0, 2])
def test_asynchronous_copies_see_the_right_bytes(pin: bool, workers: int) -> None:
    """The device is kept busy, so that copies start long after the program has dropped the batch."""
    dataset = Numbered(1600)
    ballast = torch.randn(4096, 4096, device="cuda")
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []
    with serving.served(workers=workers or None):
        for batch, index in DataLoader(dataset, batch_size=16, num_workers=workers, pin_memory=pin):
            assert batch.is_pinned() == pin
            ballast = torch.tanh(ballast @ ballast)
            on_device = batch.to("cuda", non_blocking=True)
            kept.append((on_device.double().mean(1), index))
            del batch, on_device
    torch.cuda.synchronize()
    assert len(kept) == 100
    for means, index in kept:
        assert torch.equal(means.cpu(), index.double())


def test_loader_made_after_cuda_is_in_use() -> None:
    """Forked workers must not touch the parent's CUDA context."""
    torch.ones(1, device="cuda")
    with serving.served(workers=3):
        total = sum(int(index.sum()) for _, index in DataLoader(Numbered(640, 64), batch_size=16, num_workers=2))
    assert total == sum(range(640))


def test_batch_with_custom_pin_memory() -> None:
    """A batch class with its own ``pin_memory`` is pinned by it, as torch does."""
    with serving.served(workers=2):
        loader = DataLoader(Numbered(64, 64), batch_size=8, num_workers=2, pin_memory=True, collate_fn=Batch)
        batches = list(loader)
    assert all(batch.pinned and batch.data.is_pinned() for batch in batches)


class Batch:
    """Collates by itself."""

    def __init__(self, samples: list[tuple[torch.Tensor, int]]) -> None:
        self.data = torch.stack([sample for sample, _ in samples])
        self.pinned = False

    def pin_memory(self) -> Batch:
        """What torch's pinning calls."""
        self.data, self.pinned = self.data.pin_memory(), True
        return self

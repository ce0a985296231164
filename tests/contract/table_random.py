"""Cases on random transforms: equal in full with stock's seeds, equal in order and streams with seeds per sample."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader, default_collate

from .datasets import Augmented, AugmentedCounting, PrivateGenerator, Rows, draw_all
from .registry import case
from .transcript import Transcript


@case("random")
def augmented_without_workers() -> Transcript:
    """The transforms draw from the program's own streams, between the loop's own draws."""
    t = Transcript()
    t.epochs(DataLoader(Augmented(), batch_size=3, shuffle=True), num=3, draw=True)
    return t


@case("random")
def counting_without_workers() -> Transcript:
    t = Transcript()
    dataset = AugmentedCounting()
    t.epochs(DataLoader(dataset, batch_size=3, shuffle=True), draw=True)
    t.event("calls", dataset.calls)
    return t


@case("random")
def counting_with_workers() -> Transcript:
    """Impure: pinned, so stock's worker assignment and seeds, random values included."""
    t = Transcript()
    for workers in (1, 2, 3):
        dataset = AugmentedCounting()
        t.epochs(DataLoader(dataset, batch_size=3, shuffle=True, num_workers=workers), draw=True)
        t.event("calls", dataset.calls)
    return t


@case("random")
def counting_persistent() -> Transcript:
    t = Transcript()
    loader = DataLoader(AugmentedCounting(), batch_size=3, shuffle=True, num_workers=2, persistent_workers=True)
    t.epochs(loader, num=3, draw=True)
    return t


@case("random")
def counting_user_generator() -> Transcript:
    t = Transcript()
    own = torch.Generator().manual_seed(8)
    t.epochs(DataLoader(AugmentedCounting(), batch_size=3, shuffle=True, num_workers=2, generator=own), own, num=3)
    return t


@case("random")
def private_generator() -> Transcript:
    t = Transcript()
    for options in ({}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}):
        t.epochs(DataLoader(PrivateGenerator(), batch_size=3, shuffle=True, **options), num=3, draw=True)
    return t


@case("random")
def private_generator_early_break() -> Transcript:
    t = Transcript()
    loader = DataLoader(PrivateGenerator(), batch_size=2, shuffle=True, num_workers=2, persistent_workers=True)
    t.epoch(loader, stop=3)
    t.epoch(loader)
    return t


class Cached(Rows):
    """Draws once per sample and worker, and remembers."""

    def __init__(self) -> None:
        super().__init__(8)
        self.cache: dict[int, list[float]] = {}

    def __getitem__(self, index: int) -> torch.Tensor:
        if index not in self.cache:
            self.cache[index] = draw_all()
        return torch.tensor(self.cache[index])


@case("random")
def random_cache() -> Transcript:
    t = Transcript()
    for options in ({}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}):
        t.epochs(DataLoader(Cached(), batch_size=2, shuffle=True, **options), num=3)
    return t


class TorchGeneratorInside(Rows):
    """Holds a torch generator: each worker's copy advances by itself."""

    def __init__(self) -> None:
        super().__init__(12)
        self.generator: Any = None

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        if self.generator is None:
            self.generator = torch.Generator().manual_seed(1)
        return index, torch.rand(2, generator=self.generator)


@case("random")
def torch_generator_in_dataset() -> Transcript:
    t = Transcript()
    for workers in (0, 2):
        t.epochs(DataLoader(TorchGeneratorInside(), batch_size=2, shuffle=True, num_workers=workers))
    return t


class SeededByIndex(Rows):
    """Deterministic in its own way: seeds the main streams from the index in every sample."""

    def __getitem__(self, index: int) -> tuple[int, torch.Tensor]:
        torch.manual_seed(index)
        return index, torch.rand(2)


@case("random")
def seeded_by_index() -> Transcript:
    """Without workers this reseeds the program's own stream at each sample, which the loop's draws then show."""
    t = Transcript()
    for workers in (0, 2):
        t.epochs(DataLoader(SeededByIndex(9), batch_size=2, shuffle=True, num_workers=workers), draw=True)
    return t


@case("random", equal="streams")
def augmented_with_workers() -> Transcript:
    """Elastic: samples have seeds of their own, so the values may differ; order and main streams may not."""
    t = Transcript()
    loader = DataLoader(Augmented(), batch_size=3, shuffle=True, num_workers=2)
    seen: list[float] = []
    for _ in range(3):
        for index, values in loader:
            t.event("indices", index)
            seen += values.flatten().tolist()
            t.rng("batch")
            t.event("loop", draw_all())
        t.rng("end")
    t.event("all values are different", len(set(seen)) == len(seen) == 3 * 16 * 3)
    t.event("in range", [min(seen) >= 0, max(seen) < 1])
    return t


@case("random", equal="streams")
def augmented_with_repeated_indices() -> Transcript:
    """A sampler that repeats an index gets another transform each time."""
    t = Transcript()
    seen: list[float] = []
    for index, values in DataLoader(Augmented(), batch_size=4, sampler=[3] * 24, num_workers=2):
        t.event("indices", index)
        seen += values.flatten().tolist()
    t.event("all values are different", len(set(seen)) == len(seen))
    t.rng("end")
    return t


@case("random", equal="streams")
def augmented_persistent() -> Transcript:
    t = Transcript()
    loader = DataLoader(Augmented(), batch_size=3, num_workers=2, persistent_workers=True)
    seen: list[float] = []
    for _ in range(3):
        for index, values in loader:
            t.event("indices", index)
            seen += values.flatten().tolist()
        t.rng("end")
    t.event("all values are different", len(set(seen)) == len(seen))
    return t


def random_collate(batch: list[Any]) -> tuple[Any, list[float]]:
    """Mixes samples by a draw, as mixup does."""
    return default_collate(batch), draw_all()


@case("random")
def random_collate_without_workers() -> Transcript:
    t = Transcript()
    t.epochs(DataLoader(Rows(9), batch_size=2, shuffle=True, collate_fn=random_collate), draw=True)
    return t


@case("random", equal="streams")
def random_collate_with_workers() -> Transcript:
    t = Transcript()
    seen: list[float] = []
    loader = DataLoader(Rows(9), batch_size=2, shuffle=True, collate_fn=random_collate, num_workers=2)
    for _ in range(2):
        for batch, values in loader:
            t.event("rows", batch)
            seen += values
        t.rng("end")
    t.event("all values are different", len(set(seen)) == len(seen))
    return t


@case("random")
def two_runs_with_one_seed() -> Transcript:
    """Seeded alike, a program repeats itself, random transforms included."""
    t = Transcript()
    passes: list[list[Any]] = []
    for _ in range(2):
        torch.manual_seed(77)
        passes.append(list(DataLoader(Augmented(), batch_size=3, shuffle=True, num_workers=2)))
        t.rng("end")
    same = all(torch.equal(a, b) for p, q in zip(*passes, strict=True) for a, b in zip(p, q, strict=True))
    t.event("equal", same)
    return t

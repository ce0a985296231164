"""Cases on the life of iterators and batches: several at once, breaks, deletion, batches kept, changed and viewed."""

from __future__ import annotations

import gc
import io
import itertools
from typing import Any

import torch
from torch.utils.data import DataLoader

from .datasets import Rows, as_is
from .registry import case
from .transcript import Transcript

W2: dict[str, Any] = {"batch_size": 2, "num_workers": 2}


@case("lifetime")
def loader_zipped_with_itself() -> Transcript:
    t = Transcript()
    for workers in (0, 2):
        loader = DataLoader(Rows(9), batch_size=2, shuffle=True, num_workers=workers)
        for a, b in zip(loader, loader, strict=True):
            t.event("pair", [a, b])
            t.rng("pair")
    return t


@case("lifetime")
def three_iterators_at_different_steps() -> Transcript:
    t = Transcript()
    loader = DataLoader(Rows(14), shuffle=True, **W2)
    iterators = [t.open(loader)]
    t.take(iterators[0], stop=2)
    iterators.append(t.open(loader))
    t.take(iterators[1], stop=1)
    iterators.append(t.open(loader))
    for iterator in (iterators[2], iterators[0], iterators[1]):
        t.take(iterator)
    return t


@case("lifetime")
def break_then_new_epoch() -> Transcript:
    t = Transcript()
    for options in ({}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}):
        loader = DataLoader(Rows(15), batch_size=2, shuffle=True, **options)
        for stop in (1, 3, 0, 7, -1):
            t.epoch(loader, stop=stop, draw=True)
    return t


@case("lifetime")
def first_batch_again_and_again() -> Transcript:
    t = Transcript()
    for workers in (0, 2):
        loader = DataLoader(Rows(15), batch_size=2, shuffle=True, num_workers=workers)
        for _ in range(3):
            t.batch(next(iter(loader)))
            t.rng("next(iter())")
    return t


@case("lifetime")
def iterator_never_taken_from() -> Transcript:
    t = Transcript()
    for options in ({}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}):
        loader = DataLoader(Rows(6), batch_size=2, shuffle=True, **options)
        for _ in range(2):
            iterator = t.open(loader)
            del iterator
            gc.collect()
        t.epoch(loader)
    return t


@case("lifetime")
def iterator_deleted_in_mid_epoch() -> Transcript:
    t = Transcript()
    loader = DataLoader(Rows(30), shuffle=True, **W2)
    for stop in (1, 5):
        iterator = t.open(loader)
        t.take(iterator, stop=stop)
        del iterator
        gc.collect()
        t.rng("deleted")
    t.epoch(loader, stop=3)
    del loader
    gc.collect()
    t.rng("loader deleted")
    return t


def make_loader(length: int, workers: int = 2) -> DataLoader[Any]:
    """A loader made in a function, with locals that only it holds."""
    scale = length * 2

    def collate(batch: list[Any]) -> list[Any]:
        return [x * scale for x, _ in batch]

    return DataLoader(Rows(length), batch_size=2, shuffle=True, num_workers=workers, collate_fn=collate)


@case("lifetime")
def loaders_made_in_functions() -> Transcript:
    t = Transcript()
    for length in (5, 8, 3):
        for batch in make_loader(length):
            t.batch(batch)
        t.rng("end")
    return t


@case("lifetime")
def train_and_validation_interleaved() -> Transcript:
    t = Transcript()
    train = DataLoader(Rows(20), shuffle=True, **W2)
    valid = DataLoader(Rows(6), batch_size=3, num_workers=1)
    for _ in range(2):
        iterator = t.open(train)
        for step in range(10):
            t.take(iterator, stop=1, draw=True)
            if step % 4 == 3:
                t.epoch(valid, stop=-1 if step > 4 else 1)
        t.take(iterator)
    return t


@case("lifetime")
def loader_iterated_by_everything() -> Transcript:
    t = Transcript()
    loader = DataLoader(Rows(7), shuffle=True, **W2)
    t.event("list", list(loader))
    t.event("star", [*loader])
    t.event("enumerate", list(enumerate(loader, 5)))
    t.event("islice", list(itertools.islice(loader, 2)))
    t.event("sorted", sorted(float(x.sum()) for x, _ in loader))
    t.event("dict", dict(enumerate(loader)))
    t.event("chain", list(itertools.chain(loader, loader)))
    t.event("comprehension", [y for _, y in loader])
    a, b, c, *rest = loader
    t.event("unpacked", [a, b, c, rest])
    t.event("reduced", sum(float(x.sum()) for x, _ in loader))
    t.rng("end")
    return t


@case("lifetime")
def kept_and_changed_batches() -> Transcript:
    """Batches stay as they are, and as the program changes them, however many more come."""
    t = Transcript()
    kept: list[Any] = []
    for number, (x, y) in enumerate(DataLoader(Rows(120, 5), shuffle=True, **W2)):
        x.add_(number).mul_(2)
        y[0] = -number
        kept.append((x, y))
    t.event("kept", kept)
    for x, y in kept:
        x.zero_()
        y.sub_(1)
    t.event("changed", kept)
    return t


@case("lifetime")
def views_outlive_their_batch() -> Transcript:
    """Every way to hold on to a part of a batch, while many more batches come."""
    t = Transcript()
    held: list[Any] = []
    for number, (x, y) in enumerate(DataLoader(Rows(120, 6), shuffle=True, **W2)):
        ways: list[Any] = [
            x[1:], x.numpy()[0], x.data, x.detach(), y.view(-1), x.t()[2:], torch.from_dlpack(x), x.unbind()[0],
            torch.as_tensor(x.numpy()), x.untyped_storage(), memoryview(x.numpy()), x.flatten().requires_grad_() * 2,
        ]  # fmt: skip
        held.append(ways[number % len(ways)])
    for part in held:
        if isinstance(part, torch.UntypedStorage | memoryview):
            part = bytes(part)
        t.event("held", part)
    return t


@case("lifetime")
def a_few_batches_kept_of_many() -> Transcript:
    t = Transcript()
    kept = [batch for number, batch in enumerate(DataLoader(Rows(200, 5), **W2)) if number % 9 == 0]
    t.event("kept", kept)
    return t


@case("lifetime")
def batch_used_in_training() -> Transcript:
    """A small training loop: losses and gradients through the batch, bit for bit."""
    t = Transcript()
    for workers in (0, 2):
        torch.manual_seed(5)
        model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
        loader = DataLoader(Rows(26), batch_size=4, shuffle=True, num_workers=workers)
        for _ in range(3):
            for x, y in loader:
                x.requires_grad_()
                loss = torch.nn.functional.mse_loss(model(x / 30)[:, 0], y.float())
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                t.event("loss", [loss, x.grad])
        t.rng("trained")
    return t


@case("lifetime")
def batch_saved_for_backward_later() -> Transcript:
    """Autograd holds batches of several steps until one backward."""
    t = Transcript()
    weight = torch.ones(3, requires_grad=True)
    total = torch.zeros(())
    for x, _ in DataLoader(Rows(60), shuffle=True, **W2):
        total = total + (x * weight).square().sum()
        del x
    total.backward()
    t.event("grad", [total, weight.grad])
    return t


@case("lifetime")
def batches_moved_to_shared_memory_and_saved() -> Transcript:
    """What programs do with tensors of a batch: share, save, clone, pin to NumPy, convert."""

    t = Transcript()
    for x, y in DataLoader(Rows(8), **W2):
        buffer = io.BytesIO()
        torch.save(x, buffer)
        buffer.seek(0)
        t.event("saved", torch.load(buffer))
        t.event("converted", [x.double(), x.clone(), y.tolist(), x.numpy().copy(), x.to("cpu") is x])
        t.event("shared", x.clone().share_memory_())
    return t


@case("lifetime")
def length_of_iterators() -> Transcript:
    t = Transcript()
    for workers in (0, 2):
        loader = DataLoader(Rows(7), batch_size=2, num_workers=workers, collate_fn=as_is)
        iterator = t.open(loader)
        t.length(iterator)
        t.take(iterator, stop=2)
        t.length(iterator)
    return t


@case("lifetime")
def many_loaders_alive() -> Transcript:
    t = Transcript()
    iterators = [t.open(make_loader(4 + n, workers=1)) for n in range(5)]
    for _ in range(2):
        for iterator in iterators:
            t.take(iterator, stop=1)
    return t

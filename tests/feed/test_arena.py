"""Collation into a slot gives what torch's own gives, and larger tensors are not copied a second time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import default_collate  # noqa: E402

from stoker.core.slots.writers import SlotWriter  # noqa: E402
from stoker.feed.transport.pack import digest, pack, place, unpack  # noqa: E402
from stoker.feed.worker.arena import SlotArena  # noqa: E402

LARGE = 80  # a square of this side is worth moving on its own


def large(seed: int, dtype: Any = torch.float32) -> Any:
    return (torch.arange(LARGE * LARGE).reshape(LARGE, LARGE) + seed).to(dtype)


SAMPLES: dict[str, Any] = {
    "tensor": large,
    "array": lambda i: large(i).numpy(),
    "pair": lambda i: (large(i), i),
    "list": lambda i: [large(i, torch.int64), large(-i, torch.uint8), 1.5],
    "dict": lambda i: {"image": large(i), "name": f"n{i}", "mask": {"of": large(i, torch.bool)}},
    "transposed": lambda i: large(i).t(),
    "array of channels": lambda i: np.ascontiguousarray(large(i).numpy()).reshape(4, -1).T,
    "reversed array": lambda i: torch.from_numpy(large(i).numpy()[::-1].copy()),
    "small beside large": lambda i: (torch.tensor([i]), large(i), torch.ones(3) * i),
    "the same twice": lambda i: (lambda x: (x, x))(large(i)),
    "expanded": lambda i: torch.tensor([float(i)]).expand(LARGE * LARGE),
    "another form later": lambda i: (large(i), large(i)) if i == 0 else [large(i), large(i)],
    "another type later": lambda i: large(i).numpy() if i == 0 else large(i),
    "conjugated": lambda i: large(i, torch.complex64).conj(),
    "empty": lambda i: (torch.zeros(0, 5), large(i)),
}


@pytest.fixture
def arena() -> Iterator[SlotArena]:
    from torch.utils.data import _utils as torch_data

    table = torch_data.collate.default_collate_fn_map
    before = dict(table)
    arena = SlotArena()
    arena.install()
    yield arena
    table.clear()
    table.update(before)


def collate(arena: SlotArena, writer: SlotWriter | None, sample: Any, count: int, planned: int | None = None) -> Any:
    arena.use(writer)
    arena.begin(planned or count)
    batch = default_collate([arena.keep(sample(i)) for i in range(count)])
    arena.use(None)
    return batch


def new_writer(size_bytes: int = 1 << 22) -> SlotWriter:
    return SlotWriter(np.full(size_bytes, 7, np.uint8))


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("room", [1 << 22, 1 << 17, 100, None], ids=["room", "some room", "no room", "no slot"])
def test_batches_equal_torchs(arena, name, room):
    sample = SAMPLES[name]
    expected = digest(default_collate([sample(i) for i in range(5)]))
    writer = new_writer(room) if room is not None else None
    batch = collate(arena, writer, sample, 5)
    assert digest(batch) == expected
    if room == 1 << 22:
        skeleton = place(pack(batch), writer)
        assert digest(unpack(skeleton, writer.view)) == expected


def test_a_large_tensor_goes_to_the_slot_once(arena):
    writer = new_writer()
    samples = [large(i) for i in range(4)]
    arena.use(writer)
    arena.begin(4)
    kept = [arena.keep(sample) for sample in samples]
    used = writer.used_bytes
    batch = default_collate(kept)
    assert writer.used_bytes == used
    assert writer.offset_of(batch.data_ptr(), batch.nbytes) is not None
    assert torch.equal(batch, torch.stack(samples))


def test_fewer_samples_than_planned(arena):
    batch = collate(arena, new_writer(), large, 3, planned=8)
    assert torch.equal(batch, torch.stack([large(i) for i in range(3)]))


def test_a_second_attempt_begins_anew(arena):
    writer = new_writer()
    arena.use(writer)
    arena.begin(4)
    for i in range(2):
        arena.keep(large(i))
    arena.begin(4)
    batch = default_collate([arena.keep(large(10 + i)) for i in range(4)])
    assert torch.equal(batch, torch.stack([large(10 + i) for i in range(4)]))
    assert writer.used_bytes == batch.nbytes


def test_samples_of_two_sizes_raise_torchs_error(arena):
    with pytest.raises(RuntimeError, match="equal size"):
        collate(arena, new_writer(), lambda i: torch.zeros(LARGE, LARGE + i), 3)


def test_a_sample_that_requires_grad_is_torchs_business(arena):
    with pytest.raises(RuntimeError, match="automatic differentiation"):
        collate(arena, new_writer(), lambda i: large(i).requires_grad_(), 2)


def test_a_dataset_keeps_its_own_tensor(arena):
    own = large(0)
    before = own.clone()
    batch = collate(arena, new_writer(), lambda i: own, 3)
    batch.zero_()
    assert torch.equal(own, before)

"""Batches survive the journey bit by bit, whatever their structure; damaged skeletons are WireErrors, never crashes."""

from __future__ import annotations

import gc
import pickle
import struct
import warnings
import weakref
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.core.errors import WireError
from stoker.core.slots.writers import SlotWriter
from stoker.feed.transport.pack import digest, pack, place, unpack

Point = namedtuple("Point", "x y")
DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn, torch.uint16,
]  # fmt: skip


@dataclass
class Sample:
    """A user's own class."""

    image: Any
    label: Any


def through(batch: Any, size_bytes: int = 1 << 16) -> Any:
    writer = SlotWriter(np.zeros(size_bytes, np.uint8))
    skeleton = place(pack(batch), writer)
    assert skeleton is not None
    return unpack(skeleton, writer.view)


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return _same_tensor(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Sample):
        return same(one.image, other.image) and same(one.label, other.label)
    return one == other or (one != one and other != other)


def _same_tensor(one: torch.Tensor, other: torch.Tensor) -> bool:
    facts = [(t.dtype, t.shape, t.stride(), t.requires_grad) for t in (one, other)]
    bits = [t.detach().clone(memory_format=torch.contiguous_format).untyped_storage().tolist() for t in (one, other)]
    return facts[0] == facts[1] and bits[0] == bits[1]


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Of any type and shape, views with strides and offsets among them."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    size = int(np.prod(shape, dtype=int)) * dtype.itemsize
    raw = torch.tensor(list(draw(st.binary(min_size=size, max_size=size))), dtype=torch.uint8)
    if dtype is torch.bool:
        raw = raw % 2
    tensor = raw.view(dtype).view(shape) if size else torch.empty(shape, dtype=dtype)
    how = draw(st.sampled_from(["whole", "transposed", "every other", "expanded"]))
    if how == "transposed" and tensor.dim() >= 2:
        return tensor.transpose(0, 1)
    if how == "every other" and tensor.dim() >= 1:
        return tensor[::2]
    if how == "expanded" and tensor.dim() >= 1 and tensor.shape[0] == 1:
        return tensor.expand(3, *tensor.shape[1:])
    return tensor


ARRAYS = st.builds(
    lambda kind, shape, order: np.asarray(np.arange(int(np.prod(shape))).reshape(shape).astype(kind), order=order),
    st.sampled_from(["f4", "i8", "u1", "?", "c8", "M8[s]"]),
    st.lists(st.integers(0, 9), min_size=1, max_size=3),
    st.sampled_from(["C", "F"]),
)
LEAVES = st.one_of(
    tensors(),
    ARRAYS,
    st.none(),
    st.text(max_size=20),
    st.binary(max_size=30),
    st.integers(),
    st.floats(),
    st.booleans(),
)
BATCHES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=4), inner, max_size=4),
        st.dictionaries(st.integers(), inner, max_size=3).map(OrderedDict),
        st.builds(Point, inner, inner),
        st.builds(Sample, inner, inner),
    ),
    max_leaves=12,
)


class TestRoundTrip:
    @given(BATCHES)
    def test_any_structure(self, batch: Any) -> None:
        assert same(batch, through(batch))

    @given(BATCHES)
    def test_digests_agree_before_and_after(self, batch: Any) -> None:
        assert digest(batch) == digest(batch)

    def test_a_view_and_its_base_share_memory_again(self) -> None:
        base = torch.arange(12.0)
        got, row, same_again = through([base, base.view(3, 4)[1], base])
        got[4] = 99.0
        assert row[0] == 99.0
        assert same_again[4] == 99.0

    def test_arrays_and_tensors_over_one_memory(self) -> None:
        array = np.arange(1000.0)
        got, tensor = through([array, torch.from_numpy(array)])
        assert np.array_equal(got, array)
        assert torch.equal(tensor, torch.from_numpy(array))

    @pytest.mark.parametrize("size", [3, 3000])
    def test_arrays_of_the_other_byte_order_come_as_from_torchs_workers(self, size: int) -> None:
        array = np.arange(size, dtype=">f4")
        got = through(array)
        assert got.dtype == pickle.loads(pickle.dumps(array)).dtype == np.dtype("f4")
        assert np.array_equal(got, array)

    @pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
    def test_sparse(self, layout: torch.layout) -> None:
        dense = torch.tensor([[0.0, 2.0, 0.0], [3.0, 0.0, 4.0]])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls its own CSR layout beta
            sparse = dense.to_sparse(layout=layout)
        got = through(sparse)
        assert got.layout is layout
        assert torch.equal(got.to_dense(), dense)

    def test_leaves_that_require_grad(self) -> None:
        got = through(torch.ones(3, requires_grad=True))
        assert got.requires_grad
        assert got.is_leaf

    def test_what_autograd_made_is_refused_with_the_remedy(self) -> None:
        made = torch.ones(3, requires_grad=True) * 2
        with pytest.raises(RuntimeError, match=r"tensor\.detach\(\)"):
            pack([made])

    @pytest.mark.parametrize("tensor", [torch.tensor([1 + 2j]).conj(), torch.tensor([1 + 2j]).conj().imag])
    def test_lazy_conjugates_and_negatives(self, tensor: torch.Tensor) -> None:
        assert torch.equal(through(tensor).resolve_conj().resolve_neg(), tensor.resolve_conj().resolve_neg())

    def test_the_batch_keeps_its_memory_alive(self) -> None:
        batch = through({"x": torch.arange(1000), "y": np.arange(1000)})
        gc.collect()
        assert int(batch["x"].sum()) == int(batch["y"].sum()) == 499_500

    def test_what_does_not_pickle_says_so_at_once(self) -> None:
        with pytest.raises((TypeError, AttributeError), match="pickle"):
            pack([lambda: 0])


class TestPlaces:
    @given(st.integers(0, 3000))
    def test_a_batch_that_does_not_fit_is_not_half_placed(self, size_bytes: int) -> None:
        batch = [torch.arange(100), np.arange(200.0)]
        writer = SlotWriter(np.zeros(size_bytes, np.uint8))
        skeleton = place(pack(batch), writer)
        if skeleton is not None:
            assert same(batch, unpack(skeleton, writer.view))
        assert pack(batch).payload_bytes >= 100 * 8 + 200 * 8

    def test_what_lies_in_the_slot_is_not_copied(self) -> None:
        memory = np.zeros(4096, np.uint8)
        writer = SlotWriter(memory)
        offset = writer.reserve(400)
        assert offset is not None
        inside = torch.frombuffer(memory, dtype=torch.float32, count=100, offset=offset)
        inside.fill_(7.0)
        used = writer.used_bytes
        skeleton = place(pack(inside), writer)
        assert skeleton is not None
        assert writer.used_bytes == used
        assert unpack(skeleton, memory).data_ptr() == inside.data_ptr()

    @given(tensors())
    def test_buffers_keep_their_alignment(self, tensor: torch.Tensor) -> None:
        got = through([tensor])[0]
        if tensor.numel() and tensor.is_contiguous():
            assert (got.data_ptr() - tensor.data_ptr()) % tensor.dtype.itemsize == 0


class TestDamage:
    """Frames come from our own workers, but a dying one can leave anything in a slot."""

    @staticmethod
    def placed() -> tuple[bytes, np.ndarray[Any, np.dtype[np.uint8]]]:
        writer = SlotWriter(np.zeros(8192, np.uint8))
        skeleton = place(pack([torch.arange(50), np.arange(300)]), writer)
        assert skeleton is not None
        return skeleton, writer.view

    @given(st.integers(0, 23), st.binary(min_size=1, max_size=8))
    @settings(max_examples=300)
    def test_a_wrong_table_is_a_wire_error_or_stays_inside_the_memory(self, at: int, garbage: bytes) -> None:
        skeleton, memory = self.placed()
        damaged = skeleton[:at] + garbage + skeleton[at + len(garbage) :]
        try:
            tensor, _ = unpack(damaged, memory)
        except (WireError, RuntimeError, ValueError, TypeError, EOFError, pickle.UnpicklingError):
            return
        assert len(tensor) == 50

    @given(st.binary(max_size=40))
    def test_arbitrary_heads(self, skeleton: bytes) -> None:
        if len(skeleton) >= 8 and struct.unpack_from("<II", skeleton) == (0, 0):
            return  # a sound head: what follows is a pickle
        with pytest.raises(WireError):
            unpack(skeleton, np.zeros(64, np.uint8))

    def test_a_table_that_points_beyond_the_memory(self) -> None:
        skeleton, memory = self.placed()
        with pytest.raises(WireError, match="its memory has 100"):
            unpack(skeleton, memory[:100])

    def test_an_offset_that_would_wrap_around(self) -> None:
        skeleton, memory = self.placed()
        damaged = skeleton[:8] + (2**64 - 8).to_bytes(8, "little") + skeleton[16:]
        with pytest.raises(WireError, match="its memory has"):
            unpack(damaged, memory)


class TestDigest:
    @pytest.mark.parametrize(
        ("one", "other"),
        [
            (torch.tensor([1.0]), torch.tensor([2.0])),
            (torch.tensor([0.0]), torch.tensor([-0.0])),
            (torch.tensor([1]), torch.tensor([1], dtype=torch.int32)),
            (torch.zeros(2, 3), torch.zeros(3, 2)),
            (torch.zeros(2, 3), torch.zeros(3, 2).t()),
            ([1, 2], (1, 2)),
            ({"a": 1}, {"b": 1}),
            (np.arange(500), np.arange(500)[::-1].copy()),
            ("a", b"a"),
        ],
    )
    def test_differences_show(self, one: Any, other: Any) -> None:
        assert digest(one) != digest(other)


def test_nothing_of_a_batch_waits_for_the_garbage_collector() -> None:
    """A worker that keeps the last batches until the next collection needs several times the memory of torch's."""
    batch = {"image": torch.zeros(1000), "mask": np.zeros(1000)}
    gone = weakref.ref(batch["image"])
    gc.disable()
    try:
        packed = pack(batch)
        del packed, batch
        assert gone() is None
    finally:
        gc.enable()

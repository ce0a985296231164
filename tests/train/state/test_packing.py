"""States of optimizers as bytes, and bytes that are none."""

from __future__ import annotations

import contextlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.errors import WireError
from stoker.train.state.packing import packed, unpacked

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8, torch.complex64)
tensors = st.builds(
    lambda shape, dtype: torch.arange(int(torch.Size(shape).numel())).reshape(shape).to(dtype),
    st.lists(st.integers(0, 4), max_size=3),
    st.sampled_from(DTYPES),
)
states = st.dictionaries(st.text(max_size=5), tensors | st.integers(-9, 9) | st.floats(0, 1) | st.none(), max_size=6)


@given(states)
def test_values_come_back_as_they_were(values: dict[str, object]) -> None:
    found = unpacked(bytearray(packed(values)))
    assert list(found) == list(values)
    for name, value in values.items():
        if isinstance(value, torch.Tensor):
            again = found[name]
            assert isinstance(again, torch.Tensor)
            assert (again.dtype, again.shape) == (value.dtype, value.shape)
            assert torch.equal(again, value)
        else:
            assert found[name] == value


@given(states, st.data())
def test_bytes_that_are_cut_or_changed_are_refused_or_are_values(
    values: dict[str, object], data: st.DataObject
) -> None:
    good = bytearray(packed(values))
    bad = good[: data.draw(st.integers(0, len(good) - 1))]
    with pytest.raises(WireError):
        unpacked(bad)
    place = data.draw(st.integers(0, len(good) - 1))
    good[place] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(WireError):
        unpacked(good)


def test_what_is_no_value_is_not_sent() -> None:
    for value in ([1], torch.eye(2).to_sparse(), object()):
        with pytest.raises(KeyError):
            packed({"name": value})

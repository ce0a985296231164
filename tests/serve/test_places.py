"""Tensors in a slot: aligned, apart, inside; what does not fit is said."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.core.slots.ring import ALIGN
from stoker.serve.processes.places import array_at, placed

SLOT_BYTES = 4096
F4 = np.dtype("<f4")


@given(st.lists(st.integers(0, 1500), max_size=6), st.integers(0, SLOT_BYTES))
def test_places_are_apart_or_there_are_none(sizes: list[int], used_bytes: int) -> None:
    places = placed(sizes, used_bytes, SLOT_BYTES)
    if places is None:
        assert used_bytes + sum(sizes) + ALIGN * len(sizes) > SLOT_BYTES
        return
    ends = [offset + size for offset, size in zip(places.offsets, sizes, strict=True)]
    assert all(offset % ALIGN == 0 for offset in places.offsets)
    assert all(end <= offset for end, offset in zip([used_bytes, *ends], places.offsets, strict=False))
    assert places.end == (ends[-1] if ends else used_bytes) <= SLOT_BYTES


def test_tensors_share_the_memory_of_their_slot() -> None:
    memory = np.zeros(SLOT_BYTES, np.uint8)
    array_at(memory, 64, (2, 3), F4)[...] = 1.0
    np.testing.assert_array_equal(array_at(memory, 64, (6,), F4), np.ones(6, F4))
    assert memory[:64].sum() == memory[88:].sum() == 0


@pytest.mark.parametrize(("offset", "shape"), [(-64, (1,)), (4096, (1,)), (0, (1025,)), (4032, (17,)), (0, (-1,))])
def test_places_outside_are_refused(offset: int, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="within 4096 bytes"):
        array_at(np.zeros(SLOT_BYTES, np.uint8), offset, shape, F4)

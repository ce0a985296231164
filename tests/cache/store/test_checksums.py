"""Verified copies: every range of a page, every block that is wrong."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.cache.store.checksums import BLOCK_BYTES, copy_verified, is_intact, sums_of, unpack_sums

SIZES = [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES, 3 * BLOCK_BYTES + 77]


def page_of(size: int) -> bytes:
    return random.Random(size).randbytes(size)


@given(size=st.sampled_from(SIZES), data=st.data())
def test_ranges_are_copied_and_damage_in_their_blocks_is_seen(size: int, data: st.DataObject) -> None:
    page = page_of(size)
    sums = unpack_sums(sums_of(memoryview(page)), 0, size)
    edges = sorted(
        {0, size, *(at + d for at in range(0, size + 1, BLOCK_BYTES) for d in (-1, 0, 1) if 0 <= at + d <= size)}
    )
    start = data.draw(st.sampled_from(edges))
    end = data.draw(st.sampled_from([edge for edge in edges if edge >= start]))
    into = bytearray(end - start)
    assert copy_verified(memoryview(page), sums, start, memoryview(into))
    assert into == page[start:end]
    if size:
        wrong = data.draw(st.sampled_from([edge for edge in edges if edge < size]))
        damaged = bytearray(page)
        damaged[wrong] ^= 1
        touched = start < end and start // BLOCK_BYTES <= wrong // BLOCK_BYTES <= (end - 1) // BLOCK_BYTES
        assert copy_verified(memoryview(damaged), sums, start, memoryview(into)) != touched
        assert not is_intact(memoryview(damaged), sums)


@pytest.mark.parametrize("size", SIZES)
def test_a_page_of_more_than_a_megabyte_has_checksums_too(size: int) -> None:
    page = page_of(size + 20 * BLOCK_BYTES)
    sums = unpack_sums(sums_of(memoryview(page)), 0, len(page))
    assert len(sums) == -(-len(page) // BLOCK_BYTES)
    assert is_intact(memoryview(page), sums)

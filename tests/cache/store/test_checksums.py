"""Verified copies: every range of a page, every block that is wrong."""

from __future__ import annotations

import random
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.cache.store.files import checksums
from stoker.cache.store.files.checksums import BLOCK_BYTES, SUM_BYTES, copy_verified, is_intact, sums_bytes, sums_of

SIZES = [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES, 3 * BLOCK_BYTES + 77]


def page_of(size: int) -> bytes:
    return random.Random(size).randbytes(size)


@given(size=st.sampled_from(SIZES), data=st.data())
def test_ranges_are_copied_and_damage_in_their_blocks_is_seen(size: int, data: st.DataObject) -> None:
    page = page_of(size)
    sums = sums_of(memoryview(page))
    assert len(sums) == sums_bytes(size)
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
        assert not is_intact(memoryview(damaged), sums, 0, size)


@pytest.mark.parametrize("size", SIZES)
def test_a_page_of_more_than_a_megabyte_has_checksums_too(size: int) -> None:
    page = page_of(size + 20 * BLOCK_BYTES)
    sums = sums_of(memoryview(page))
    assert len(sums) == sums_bytes(len(page)) == SUM_BYTES * (1 + -(-len(page) // BLOCK_BYTES))
    assert is_intact(memoryview(page), sums, 0, len(page))


@pytest.mark.parametrize("blockwise", [0, 1000])
def test_damage_of_a_whole_page_is_seen_in_one_run_and_block_by_block(
    blockwise: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checksums._runs, "blockwise", blockwise)
    size = 3 * BLOCK_BYTES + 77
    page = page_of(size)
    sums = sums_of(memoryview(page))
    into = bytearray(size)
    for wrong in (0, BLOCK_BYTES, size - 1):
        damaged = bytearray(page)
        damaged[wrong] ^= 1
        assert not copy_verified(memoryview(damaged), sums, 0, memoryview(into))
    assert into == bytes(size)  # nothing of it was handed out
    assert copy_verified(memoryview(page), sums, 0, memoryview(into))
    assert into == page


def test_whole_pages_are_summed_block_by_block_once_another_thread_was_seen_to_compute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = checksums._Runs()
    monkeypatch.setattr(checksums, "_runs", runs)
    page = memoryview(page_of(1 << 20))
    sums = sums_of(page)
    ending = threading.Event()

    def compute() -> None:
        while not ending.is_set():
            pass

    other = threading.Thread(target=compute)
    other.start()
    try:
        deadline = time.monotonic() + 10
        while not runs.blockwise and time.monotonic() < deadline:
            assert is_intact(page, sums, 0, len(page))
    finally:
        ending.set()
        other.join()
    assert runs.blockwise

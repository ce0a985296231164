"""The index against a dictionary, and how little room it takes."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from stoker.cache.store.index.index_file import SLOT_BYTES
from stoker.cache.store.index.page_index import Entry, Index, pack_slot, unpack_slot


def entry_of(i: int, segment: int = 1) -> Entry:
    return Entry(i * 0x9E3779B97F4A7C15 % 2**64, i * 1000, 1e9 + i / 4, segment, 64 * i, i % (1 << 20), i % 256)


def keys(number: int, seed: int = 1) -> list[bytes]:
    rng = random.Random(seed)
    return [rng.randbytes(16) for _ in range(number)]


def test_a_slot_says_what_was_packed() -> None:
    for i in (0, 1, 77, 2**20 - 1):
        slot = pack_slot(b"k" * 16, entry_of(i))
        assert len(slot) == SLOT_BYTES
        assert unpack_slot(slot) == entry_of(i)
        assert slot[-1]
    biggest = Entry(2**64 - 1, 2**48 - 1, (2**40 - 1) / 256, 2**32 - 1, (2**32 - 1) * 64, 2**24 - 1, 255)
    assert unpack_slot(pack_slot(b"\xff" * 16, biggest)) == biggest


def test_a_torn_slot_is_none() -> None:
    old, new = pack_slot(b"k" * 16, entry_of(1)), pack_slot(b"k" * 16, entry_of(2))
    torn = [new[:at] + old[at:] for at in range(1, SLOT_BYTES)]
    assert {unpack_slot(slot) for slot in torn} <= {None, entry_of(1), entry_of(2)}
    assert unpack_slot(bytes(SLOT_BYTES)) is None


def test_entries_are_found_through_all_growth_and_the_index_stays_small(tmp_path: Path) -> None:
    index = Index(tmp_path / "index", lambda: np.array([1], "u4"))
    other = Index(tmp_path / "index", lambda: np.array([1], "u4"))
    all_keys = keys(24_000)
    for i, key in enumerate(all_keys):
        index.put(key, entry_of(i))
        if i % 200 == 0:
            # While a table is written anew it takes its room twice: 66 KiB, however large the index is.
            assert index.num_bytes <= 58 * (i + 1) + 90_000
            assert i < 15_000 or index.num_bytes <= 64 * (i + 1)
        if i % 1000 == 0:
            assert [other.find(key) for key in all_keys[: i + 1 : 97]] == [entry_of(j) for j in range(0, i + 1, 97)]
    assert all(index.find(key) == entry_of(i) for i, key in enumerate(all_keys))
    assert not any(index.find(key) for key in keys(2000, seed=2))
    index.close()
    again = Index(tmp_path / "index", lambda: np.array([1], "u4"))
    assert all(again.find(key) == entry_of(i) for i, key in enumerate(all_keys))
    again.close()
    other.close()


def test_removing_and_replacing(tmp_path: Path) -> None:
    rng = random.Random(3)
    index = Index(tmp_path / "index", lambda: np.array([1], "u4"))
    all_keys = keys(3000, seed=3)
    model: dict[bytes, Entry] = {}
    for step in range(12_000):
        key = rng.choice(all_keys)
        if rng.random() < 0.3:
            index.remove(key)
            model.pop(key, None)
        else:
            index.put(key, entry_of(step))
            model[key] = entry_of(step)
    assert {key: found for key in all_keys if (found := index.find(key)) is not None} == model
    index.close()


def test_entries_of_files_that_are_gone_make_place(tmp_path: Path) -> None:
    alive = [1]
    index = Index(tmp_path / "index", lambda: np.array(alive, "u4"))
    for segment in range(1, 30):
        alive[:] = range(max(1, segment - 4), segment + 1)
        for i, key in enumerate(keys(600, seed=segment)):
            index.put(key, entry_of(i, segment))
    assert index.num_bytes <= 64 * 3000 + 100_000
    for segment in alive:
        assert all(index.find(key) for key in keys(600, seed=segment))
    index.close()


@pytest.mark.parametrize("byte", [0, 255])
def test_keys_of_one_hash_fill_a_table_until_there_is_no_room(tmp_path: Path, byte: int) -> None:
    """Hashes that nothing tells apart: the index refuses, it does not loop or lose what it has."""
    index = Index(tmp_path / "index", lambda: np.array([1], "u4"))
    stored: list[bytes] = []
    for i in range(10_000):
        key = bytes([byte] * 8) + i.to_bytes(2, "big") * 2 + bytes([7] * 4)
        try:
            index.put(key, entry_of(i))
        except OSError:
            break
        stored.append(key)
    assert 1000 < len(stored) < 1500
    assert all(index.find(key) == entry_of(i) for i, key in enumerate(stored))
    index.close()

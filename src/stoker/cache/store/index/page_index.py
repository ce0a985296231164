"""Where each page is: a hash table in a mapped file, 48 bytes a page, read without locks.

The top bits of a key's hash choose a table through a directory (extendible hashing). A table has up to 16 buckets of 85
slots, and grows by one bucket at a time, so that all tables together are never less than three quarters full, however
evenly they fill: from 15,000 pages on that is at most 64 bytes a page, including a table that is being rewritten. A
full bucket overflows into the next one.

The index is a hint. Slots carry a checksum, so a torn one is a miss, and the record that a slot points to repeats the
key. Changes are made under the publish lock, by ``pwrite``: so a full disk is an error and not a signal.

Source: Fagin et al. 1979 (extendible hashing); partial expansions after Larson 1980.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from xxhash import xxh3_64_intdigest

from stoker.cache.store.index.index_file import (
    BUCKET_BYTES,
    BUCKETS_AT,
    DEPTH,
    DIRECTORY_CELL,
    MOST_DEPTH,
    OVERFLOW_AT,
    SLOT_BYTES,
    SLOTS,
    TABLE_WORDS,
    TABLES_WORD,
    IndexFile,
    KeyPlace,
)

SLOT = struct.Struct("<12sQQQIII")
_PREFIX_BYTES = 12
_HASHES = struct.Struct("<QI").unpack_from
_UNPACK = SLOT.unpack
_NEW_TUPLE = cast("Callable[[type[Entry], tuple[object, ...]], Entry]", getattr(tuple, "__new__"))  # noqa: B009
_EMPTY = bytes(SLOT_BYTES)
_FULL_FRAC = 0.92
"""Load at which a table grows when a bucket has no room."""
_UNIT_BYTES = 64
"""Offsets count units of the records' alignment."""
_TICKS_PER_S = 256
TICK_S = 1 / _TICKS_PER_S
"""Times are rounded to this."""
_SIZE_MASK, _TICK_MASK = (1 << 48) - 1, (1 << 40) - 1


class Entry(NamedTuple):
    """What a lookup returns: where a page is, and which version of the object it belongs to.

    Attributes:
        version: digest of the version.
        object_size: bytes of the object.
        checked_at: when the store last said that this is the version (seconds since the epoch, rounded down).
        segment: number of the file.
        offset: of the record in a segment, of the page in a large object.
        length: bytes of the page.
        rule: number of the rule under which it was stored.
    """

    version: int
    object_size: int
    checked_at: float
    segment: int
    offset: int
    length: int
    rule: int


class Spot(NamedTuple):
    """The result of :meth:`Index.seek`.

    Attributes:
        entry: of the key; None if there is none.
        at: where its slot is, or can be written, in the file; None if that takes a full search.
    """

    entry: Entry | None
    at: int | None


def pack_slot(key: bytes, entry: Entry) -> bytes:
    """A slot, with its checksum; its last byte is never 0, so that runs of zeros are empty slots."""
    ticks = min(_TICK_MASK, max(0, int(entry.checked_at * _TICKS_PER_S)))
    head = SLOT.pack(
        key[:_PREFIX_BYTES], entry.version, entry.object_size | entry.rule << 48, ticks | entry.length << 40,
        entry.segment, entry.offset // _UNIT_BYTES, 0,
    )[:44]  # fmt: skip
    return head + (xxh3_64_intdigest(head) & 0xFFFFFFFF | 0x01000000).to_bytes(4, "little")


def unpack_slot(slot: bytes) -> Entry | None:
    """The entry in a slot; None if it is torn or empty."""
    _, version, size, ticks, segment, offset, check = _UNPACK(slot)
    if xxh3_64_intdigest(slot[:44]) & 0xFFFFFFFF | 0x01000000 != check:
        return None
    # Takes half the time of calling the class.
    return _NEW_TUPLE(
        Entry,
        (
            version, size & _SIZE_MASK, (ticks & _TICK_MASK) / _TICKS_PER_S, segment, offset * _UNIT_BYTES, ticks >> 40,
            size >> 48 & 0xFF,
        ),
    )  # fmt: skip


class Index:
    """The index of a store.

    Args:
        path: of its file.
        alive: returns the sorted numbers of the files whose pages are served; slots of others are removed when a table
            is rewritten.
        reads_only: the file may not be written.
    """

    def __init__(
        self, path: Path, alive: Callable[[], np.ndarray[Any, np.dtype[Any]]], *, reads_only: bool = False
    ) -> None:
        self._file = IndexFile(path, reads_only=reads_only)
        self._alive = alive

    def close(self) -> None:
        """Unmap the file."""
        self._file.close()

    @property
    def num_bytes(self) -> int:
        """Bytes that the index takes on disk."""
        return self._file.num_bytes

    @property
    def num_buckets(self) -> int:
        """Buckets that were ever used: while this stays the same, the index does not grow on disk."""
        return self._file.num_buckets

    @property
    def is_empty(self) -> bool:
        """Whether there never was an entry."""
        return self._file.is_empty

    def find(self, key: bytes) -> Entry | None:
        """The entry of a key; None if there is none. Needs no lock."""
        # On the path of every read: `place`, `_buckets_from` and `_position` are repeated here without calls.
        data, cells, words = self._file.view
        hashes: tuple[int, int] = _HASHES(key)
        high, low = hashes
        try:
            depth = cells[DEPTH]
            if depth > MOST_DEPTH:
                return None
            table = cells[DIRECTORY_CELL + (1 << depth) + (high >> (64 - depth))]
            if not table:
                return None
            num_buckets = table >> 32 & 0xFF
            first = TABLES_WORD + ((table & 0xFFFFFFFF) - 1) * TABLE_WORDS
            bucket = low * num_buckets >> 32
            prefix = key[:_PREFIX_BYTES]
            for _ in range(num_buckets):
                at = BUCKETS_AT + words[first + bucket] * BUCKET_BYTES
                content = data[at : at + OVERFLOW_AT]
                pos = content.find(prefix)
                while pos >= 0:
                    if not pos % SLOT_BYTES:
                        return unpack_slot(content[pos : pos + SLOT_BYTES])
                    pos = content.find(prefix, pos + 1)
                if not data[at + OVERFLOW_AT]:
                    return None
                bucket = bucket + 1 if bucket + 1 < num_buckets else 0
        except IndexError:
            # Another process extended the file beyond this map (or a power loss damaged the numbers).
            return self.find(key) if self._file.remap_if_longer() else None
        return None

    def seek(self, key: bytes) -> Spot:
        """The entry of a key, and where :meth:`write` puts it. Under the publish lock; valid while it is held."""
        try:
            place = self._file.place(key)
            if place is not None:
                at = BUCKETS_AT + place.words[place.buckets + place.first] * BUCKET_BYTES
                bucket = place.data[at : at + OVERFLOW_AT + 1]
                # Shorter if another process extended the file beyond this map.
                if len(bucket) > OVERFLOW_AT and not bucket[OVERFLOW_AT]:
                    # No overflow: the key is in this bucket or missing. Most keys are new ones, and there is room.
                    pos = _position(bucket, key)
                    if pos >= 0:
                        return Spot(unpack_slot(bucket[pos : pos + SLOT_BYTES]), at + pos)
                    free = bucket.find(_EMPTY, 0, OVERFLOW_AT)
                    return Spot(None, at + free if free >= 0 else None)
            found = self._slot_of(key)
        except (IndexError, ValueError):
            return Spot(None, None)  # the index is damaged
        return Spot(None, None) if found is None else Spot(self.find(key), found)

    def put(self, key: bytes, entry: Entry) -> None:
        """Set the entry of a key. Under the publish lock.

        Raises:
            OSError: the disk is full, or the index damaged; nothing has changed.
        """
        self.write(key, pack_slot(key, entry), self.seek(key))

    def write(self, key: bytes, slot: bytes, spot: Spot) -> None:
        """Set the entry of a key. Under the publish lock.

        Args:
            key: of the page.
            slot: the entry, from :func:`pack_slot`.
            spot: the result of :meth:`seek` for the key.

        Raises:
            OSError: the disk is full, or the index damaged; nothing has changed.
        """
        if spot.at is not None:
            self._file.write(spot.at, slot)
            return
        # A table that is full gets a bucket or is split: the second attempt finds room except for the oddest hashes.
        try:
            for _ in range(8):
                if self._insert(key, slot):
                    return
                self._file.rewrite(key, self._alive())
        except (IndexError, ValueError, struct.error) as error:
            raise OSError(errno.EIO, "the page index is damaged") from error
        raise OSError(errno.ENOSPC, "the page index has no room for a key")

    def remove(self, key: bytes) -> None:
        """Forget a key. Under the publish lock."""
        try:
            found = self._slot_of(key)
        except (IndexError, ValueError):
            return  # the index is damaged; a key that cannot be found is forgotten
        if found is not None:
            self._file.write(found, _EMPTY)

    def _slot_of(self, key: bytes) -> int | None:
        """Where the slot of a key is in the file, torn or not."""
        self._file.remap_if_longer()
        place = self._file.place(key)
        if place is None:
            return None
        for at in _buckets_from(place):
            pos = _position(place.data[at : at + OVERFLOW_AT], key)
            if pos >= 0:
                return at + pos
            if not place.data[at + OVERFLOW_AT]:
                return None
        return None

    def _insert(self, key: bytes, slot: bytes) -> bool:
        """Write a slot into a free place of its table; False if the table must be rewritten first."""
        place = self._file.place(key)
        if place is None:
            return False
        passed: list[int] = []
        for at in _buckets_from(place):
            free = place.data[at : at + OVERFLOW_AT].find(_EMPTY)
            if free >= 0:
                # Flags first: they make readers continue after a full bucket.
                for full in passed:
                    if not place.data[full + OVERFLOW_AT]:
                        self._file.write(full + OVERFLOW_AT, b"\1")
                self._file.write(at + free, slot)
                return True
            # For every eighth key, which is often enough, since it looks at all buckets.
            if not passed and not key[-1] % 8 and _load(place) >= _FULL_FRAC:
                return False
            passed.append(at)
        return False


def _position(bucket: bytes, key: bytes) -> int:
    """Where the slot of a key begins in a bucket; -1 if it is not there."""
    prefix = key[:_PREFIX_BYTES]
    pos = bucket.find(prefix)
    while pos >= 0 and pos % SLOT_BYTES:
        pos = bucket.find(prefix, pos + 1)
    return pos


def _buckets_from(place: KeyPlace) -> Iterator[int]:
    """Places of a table's buckets in the file, from the one that is searched first."""
    for step in range(place.num_buckets):
        bucket = place.words[place.buckets + (place.first + step) % place.num_buckets]
        yield BUCKETS_AT + bucket * BUCKET_BYTES


def _load(place: KeyPlace) -> float:
    """Share of a table's slots in use."""
    used = 0
    for at in _buckets_from(place):
        used += SLOTS - place.data[at + SLOT_BYTES - 1 : at + OVERFLOW_AT : SLOT_BYTES].count(0)
    return used / (place.num_buckets * SLOTS)

"""A page on disk: a header with all metadata, the checksums of its blocks, and its bytes.

The header repeats the index entry, under a separate checksum. A read that a stale index entry misdirects finds another
key and is a miss. All numbers are little-endian; records and payloads begin at multiples of 64 bytes.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from stoker.cache.names import ObjectName
from stoker.cache.store.files.checksums import Readable, sums_bytes
from stoker.cache.versions import Strength, Version

ALIGN = 64
_MAGIC = b"SPg1"
_HEAD = struct.Struct("<4sIQ16sQQdIIBBxxHHH2x")
"""Magic, payload's place, checksum of the rest; key, version's digest, object's size, checked at, index, length, rule,
strength; lengths of namespace, path and token. Checksums of the page, namespace, path and token follow."""
_FIRST_OF_HEAD = struct.Struct("<4sIQ16sQ20xI").unpack_from
"""The fields that reading compares."""
_FRONT_OF_HEAD, _REST_OF_HEAD = struct.Struct("<4sIQ"), struct.Struct("<16sQQdIIBBxxHHH2x")
"""The fields as written, in two parts: the first one has the checksum of the second."""
_CHECKED_FROM = _FRONT_OF_HEAD.size
LONGEST_TEXT_BYTES = 0xFFFF


class PageHeader(NamedTuple):
    """The metadata of a page in its record.

    Attributes:
        name: of the object.
        page: its index.
        version: of the object.
        checked_at: when the store confirmed it last before the page was written.
        rule: number of the rule it was stored under.
        length: bytes of the page.
        payload: where they begin, from the record's start.
        sums: checksums of the page.
        total: bytes of the record up to the next one.
    """

    name: ObjectName
    page: int
    version: Version
    checked_at: float
    rule: int
    length: int
    payload: int
    sums: bytes
    total: int


def aligned(size: int, unit: int = ALIGN) -> int:
    """The next multiple of a unit."""
    return -(-size // unit) * unit


def pack_header(
    name: ObjectName, index: int, version: Version, length: int, sums: bytes, *, rule: int, checked_at: float,
    key: bytes | None = None, digest: int | None = None,
) -> bytes | None:  # fmt: skip
    """Header of a record up to its payload; None if a text is too long to be kept.

    Args:
        name: of the object.
        index: of the page.
        version: of the object.
        length: bytes of the page.
        sums: its checksums.
        rule: number of the rule it is stored under.
        checked_at: when the store confirmed the version.
        key: of the page, if the caller has computed it.
        digest: of the version, likewise.
    """
    namespace = name.namespace.encode("utf-8", "surrogateescape")
    path = name.path.encode("utf-8", "surrogateescape")
    token = version.token.encode("utf-8", "surrogateescape")
    sizes = len(namespace), len(path), len(token)
    if max(sizes) > LONGEST_TEXT_BYTES:
        return None
    rest = _REST_OF_HEAD.pack(
        name.key(index) if key is None else key, version.digest if digest is None else digest,
        version.size, checked_at, index, length, rule, version.strength, *sizes,
    )  # fmt: skip
    size = aligned(_HEAD.size + len(sums) + sum(sizes))
    rest = b"".join((rest, sums, namespace, path, token)).ljust(size - _CHECKED_FROM, b"\0")
    return _FRONT_OF_HEAD.pack(_MAGIC, size, xxh3_64_intdigest(rest)) + rest


def locate(
    data: Readable, offset: int, end: int, key: bytes, version: int, length: int, *, checked: bool
) -> tuple[int, bytes] | None:
    """Start of a record's payload, and its checksums; None if it is another page or no record.

    Args:
        data: the mapped segment.
        offset: of the record.
        end: of the segment.
        key: of the requested page.
        version: its digest.
        length: bytes of the page, as the index says.
        checked: whether to verify the header's checksum; False if it was verified before.
    """
    if offset + _HEAD.size > end:
        return None
    magic, payload, check, found, digest, stored = _FIRST_OF_HEAD(data, offset)
    if magic != _MAGIC or found != key or digest != version or stored != length:
        return None
    if payload < _HEAD.size or offset + payload + length > end:
        return None
    if checked and xxh3_64_intdigest(data[offset + _CHECKED_FROM : offset + payload]) != check:
        return None
    at = offset + _HEAD.size
    return offset + payload, bytes(data[at : at + sums_bytes(length)])


def parse(data: Readable, offset: int, end: int) -> PageHeader | None:
    """The fields of a header; None if it is missing or incomplete. The payload is not read."""
    if offset + _HEAD.size > end:
        return None
    fields = _HEAD.unpack_from(data, offset)
    magic, payload, check, key, digest, size, checked_at, index, length, rule, strength = fields[:11]
    if magic != _MAGIC or payload < _HEAD.size or offset + payload > end:
        return None
    head = bytes(data[offset : offset + payload])
    if xxh3_64_intdigest(head[_CHECKED_FROM:]) != check:
        return None
    texts: list[str] = []
    at = _HEAD.size + sums_bytes(length)
    for text_bytes in fields[11:]:
        texts.append(head[at : at + text_bytes].decode("utf-8", "surrogateescape"))
        at += text_bytes
    name = ObjectName(texts[0], texts[1])
    version = Version(Strength(strength), texts[2], size)
    if name.key(index) != key or version.digest != digest:
        return None
    sums = head[_HEAD.size : _HEAD.size + sums_bytes(length)]
    return PageHeader(name, index, version, checked_at, rule, length, payload, sums, aligned(payload + length))


def header_bytes(name: ObjectName, version: Version, length: int) -> int:
    """Bytes of a header, at most."""
    texts = 4 * (len(name.namespace) + len(name.path) + len(version.token))
    return aligned(_HEAD.size + sums_bytes(length) + texts)

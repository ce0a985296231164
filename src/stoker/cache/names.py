"""The name of a page: the namespace of its store, the path of its object, and its index in the object.

A namespace distinguishes stores with equal paths: protocol, endpoint and account, never a secret.
"""

from __future__ import annotations

from typing import NamedTuple

from xxhash import xxh3_128_digest

PAGE_BYTES = 1 << 20
"""Bytes of an object that one page holds; the last page of an object is shorter."""
DESCRIPTION = 0xFFFFFFFF
"""Index of the record that describes an object (what its store says of it) and holds none of its bytes."""


class ObjectName(NamedTuple):
    """An object of a store.

    Attributes:
        namespace: ``protocol|endpoint|account``, as :func:`namespace_of` writes it.
        path: as the store's own filesystem strips it (``bucket/key``), without a protocol.
    """

    namespace: str
    path: str

    def key(self, index: int) -> bytes:
        """Key of a page of the object (16 bytes).

        Args:
            index: of the page, or :data:`DESCRIPTION`.
        """
        return key_of(self.encoded, index)

    @property
    def encoded(self) -> bytes:
        """What the keys of all its pages are made of."""
        # Lengths come first, so that no two names run into the same text.
        return f"{len(self.namespace)}:{self.namespace}{self.path}".encode("utf-8", "surrogateescape")


def key_of(encoded: bytes, index: int) -> bytes:
    """Key of a page of the object whose :attr:`ObjectName.encoded` is given."""
    return xxh3_128_digest(index.to_bytes(4, "little") + encoded)


def namespace_of(protocol: str, endpoint: str = "", account: str = "") -> str:
    """The namespace of a store.

    Args:
        protocol: one of the names of its filesystem, always the same one (``s3``, not ``s3a``).
        endpoint: address of the server where it is not the protocol's usual one; ``file`` takes the machine's id.
        account: what else decides which object a path means (tenant, account, project), by its public name.
    """
    parts = (protocol, endpoint.rstrip("/"), account)
    return "|".join(part.replace("%", "%25").replace("|", "%7C") for part in parts)


def pages_of(start: int, end: int) -> range:
    """Indexes of the pages that hold the bytes from ``start`` to before ``end``."""
    return range(start // PAGE_BYTES, -(-end // PAGE_BYTES)) if end > start else range(0)


def span_of(index: int, size: int) -> tuple[int, int]:
    """First byte of a page, and the byte after its last, in an object of ``size`` bytes."""
    return index * PAGE_BYTES, min(size, (index + 1) * PAGE_BYTES)

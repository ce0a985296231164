"""What reads stores around the cache, and cannot be routed. Imports nothing that reads."""

from __future__ import annotations

import sys
from collections.abc import Collection

from stoker.cache.counting import watch

_OWN_READERS = {
    "boto3": "its own HTTP client",
    "s3torchconnector": "the AWS common runtime",
    "polars": "object_store in Rust",
    "duckdb": "its own httpfs",
    "lance": "object_store in Rust",
    "obstore": "object_store in Rust",
    "deltalake": "object_store in Rust",
    "streaming": "boto3",
    "litdata": "boto3 and obstore",
    "tensorflow": "its own C++ filesystems",
}
_made: dict[str, str] = {}
"""Readers that this process has made, and what they read with."""


def unroutable(modules: Collection[str] | None = None) -> dict[str, str]:
    """Libraries that read stores around the cache, and what they read with; of pyarrow what the program made itself.

    Args:
        modules: that the program has imported; None for what this process has imported and made.
    """
    names = sys.modules if modules is None else modules
    return {name: reader for name, reader in _OWN_READERS.items() if name in names} | (_made if modules is None else {})


def note_made(name: str, reader: str) -> None:
    """The program has made something that reads stores by itself.

    Args:
        name: of it.
        reader: what it reads with.
    """
    _made[name] = reader
    watch.tell_around(name)


def forget_made() -> None:
    """Begins anew."""
    _made.clear()

"""Finds clients that bypass the cache and cannot be routed. Imports none of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection
from types import FrameType

from stoker.cache.reading.read_counters import watch

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
_MAKERS = frozenset({"stoker", "fsspec", "pyarrow", "s3fs", "gcsfs", "adlfs"})
_MOST_MADE = 8
"""Most names to report; a program may create one for each object."""
_made: dict[str, str] = {}
"""Readers that this process has made, and what they read with."""


def unroutable(modules: Collection[str] | None = None) -> dict[str, str]:
    """Libraries that bypass the cache, and their clients; for pyarrow, those that the program created.

    Args:
        modules: that the program has imported; None for what this process has imported and made.
    """
    names = sys.modules if modules is None else modules
    return {name: reader for name, reader in _OWN_READERS.items() if name in names} | (_made if modules is None else {})


def note_made(name: str, reader: str) -> None:
    """Records a client that bypasses the cache: its class, and the line that created it.

    Args:
        name: of the class.
        reader: what it reads with.
    """
    if len(_made) < _MOST_MADE:
        made = f"{name} ({_maker()})"
        _made[made] = reader
        watch.tell_around(made)


def _maker() -> str:
    """The line of the program that is running: the nearest that is neither ours nor of what makes filesystems."""
    frame: FrameType | None = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] not in _MAKERS:
            return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
        frame = frame.f_back
    return "?"

"""Marks where torch's own iterators are made on purpose, while those that a program makes are ours."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator


class _Inside(threading.local):
    stock = False


_inside = _Inside()


@contextlib.contextmanager
def torchs_own() -> Generator[None]:
    """Torch's iterators that this thread makes in here are torch's."""
    before, _inside.stock = _inside.stock, True
    try:
        yield
    finally:
        _inside.stock = before


def is_torchs_own() -> bool:
    """Whether this thread is inside of :func:`torchs_own`."""
    return _inside.stock

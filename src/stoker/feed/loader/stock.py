"""Marks code that makes torch's own iterators on purpose; elsewhere stoker replaces them with its own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator


class _Inside(threading.local):
    stock = False


_inside = _Inside()


@contextlib.contextmanager
def torchs_own() -> Generator[None]:
    """Inside, iterators that this thread makes are torch's own."""
    before, _inside.stock = _inside.stock, True
    try:
        yield
    finally:
        _inside.stock = before


def is_torchs_own() -> bool:
    """Whether this thread is inside :func:`torchs_own`."""
    return _inside.stock

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateUsage=false
"""Filesystems that a program makes by their class (``s3fs.S3FileSystem(…)``), routed as those that it asks fsspec for.

All of fsspec's classes are called by one metaclass, whose call is replaced. Classes of the program's own that inherit
from a store's keep what they do, and are named.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

from fsspec.spec import _Cached

from stoker.cache.filesystem.around import note_made
from stoker.cache.filesystem.routed import Routed, routed_class
from stoker.cache.sources.originals import filesystem_class, is_building

_metaclass: Any = _Cached
_call: Any = _Cached.__call__

_protocols: frozenset[str] = frozenset()


def install(protocols: Collection[str]) -> None:
    """Routes classes.

    Args:
        protocols: whose stores go through the cache.
    """
    global _protocols
    _protocols = frozenset(protocols)
    _metaclass.__call__ = _routed_call


def uninstall() -> None:
    """Gives fsspec its own call back."""
    _metaclass.__call__ = _call


def _routed_call(cls: Any, *args: Any, **kwargs: Any) -> Any:
    if not is_building() and not issubclass(cls, Routed):
        for protocol in _protocols_of(cls):
            original = filesystem_class(protocol)
            if cls is original:
                return _call(routed_class(protocol), *args, **kwargs)
            if issubclass(cls, original):
                note_made(f"{cls.__module__}.{cls.__qualname__}", "a class of its own")
                break
    return _call(cls, *args, **kwargs)


def _protocols_of(cls: Any) -> list[str]:
    """Those of a class that are routed; the class of a store has them, and what inherits from it."""
    found = cast("str | tuple[str, ...]", cls.protocol)
    return [name for name in ((found,) if isinstance(found, str) else found) if name in _protocols]

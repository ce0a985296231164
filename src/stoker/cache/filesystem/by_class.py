# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false
"""Filesystems that a program makes by their class (``s3fs.S3FileSystem(…)``), routed as those that it asks fsspec for.

All of fsspec's classes are called by one metaclass, or by one that inherits from it; their calls are replaced. Classes
of the program's own that inherit from a store's keep what they do, and are named.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, cast

from fsspec.spec import _Cached

from stoker.cache.filesystem.routed import Routed, routed_class
from stoker.cache.filesystem.unrouted import note_made
from stoker.cache.sources.fsspec_registry import filesystem_class, is_building
from stoker.core.patching import Patches

_base: Any = _Cached
_own_init: Any = _Cached.__init__
_routed: set[Any] = set()
"""Metaclasses: fsspec's, and subclasses of it that override ``__call__`` (Hugging Face's)."""
_patches = Patches("sends filesystems created by their class through the cache")
_protocols: frozenset[str] = frozenset()


def install(protocols: Collection[str]) -> None:
    """Routes classes.

    Args:
        protocols: whose stores go through the cache.
    """
    global _protocols
    _protocols = frozenset(protocols)
    _patches.set(_base, "__init__", _init)
    for metaclass in (_base, *_below(_base)):
        _route(metaclass)


def uninstall() -> None:
    """Restores the metaclasses' own calls."""
    _patches.restore()
    _routed.clear()


def _below(metaclass: Any) -> Iterator[Any]:
    for each in type.__subclasses__(metaclass):
        yield each
        yield from _below(each)


def _init(cls: Any, *args: Any, **kwargs: Any) -> None:
    """Called for each new class, whose metaclass may be new too."""
    _own_init(cls, *args, **kwargs)
    _route(type(cls))


def _route(metaclass: Any) -> None:
    own = vars(metaclass).get("__call__")
    if own is None or metaclass in _routed:
        return
    _routed.add(metaclass)

    def routed_call(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return own(_class_for(cls), *args, **kwargs)

    _patches.set(metaclass, "__call__", routed_call)


def _class_for(cls: Any) -> Any:
    """The class that stands for one that is called; itself where it is not routed."""
    if not is_building() and not issubclass(cls, Routed):
        for protocol in _protocols_of(cls):
            original = filesystem_class(protocol)
            if cls is original:
                return routed_class(protocol)
            if issubclass(cls, original):
                note_made(f"{cls.__module__}.{cls.__qualname__}", "a custom subclass")
                break
    return cls


def _protocols_of(cls: Any) -> list[str]:
    """Protocols of a class that are routed; subclasses of a store's class share them."""
    found = cast("str | tuple[str, ...]", cls.protocol)
    return [name for name in ((found,) if isinstance(found, str) else found) if name in _protocols]

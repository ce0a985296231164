# pyright: reportAttributeAccessIssue=false, reportMissingTypeStubs=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
"""A store's own filesystem class with reads and writes that go through the cache; the rest is the store's own.

``isinstance``, options, listings, and methods that only this class has (tags, signed URLs) are as before.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from typing import Any

from fsspec.asyn import AsyncFileSystem
from fsspec.spec import AbstractFileSystem

from stoker.cache.filesystem.options import unnamed
from stoker.cache.filesystem.routing_settings import installed
from stoker.cache.filesystem.stoker_filesystem import StokerFileSystem
from stoker.cache.sources.fsspec_registry import filesystem_class

_NOT_OF_THE_STORE = ("asynchronous", "loop", "skip_instance_cache", "use_listings_cache")
_READS = ("cat_file", "cat", "cat_ranges", "exists", "isfile", "isdir")
_WRITES = (
    "pipe_file", "pipe", "put_file", "put", "touch", "cp_file", "copy", "mv", "rm_file", "rm", "mkdir", "makedirs",
    "rmdir",
)  # fmt: skip


class Routed(AbstractFileSystem):
    """In front of a store's class; instances are built with the store's options."""

    routed_protocol: str

    @functools.cached_property
    def stoker(self) -> StokerFileSystem:
        """The cache over the same store."""
        routing = installed()
        names = list(inspect.signature(filesystem_class(self.routed_protocol).__init__).parameters)[1:]
        options = {**dict(zip(names, self.storage_args, strict=False)), **self.storage_options}
        options = {name: value for name, value in options.items() if name not in _NOT_OF_THE_STORE}
        cached = StokerFileSystem(self.routed_protocol, options, cache_settings=routing.cache if routing else None)
        if unnamed(options, cached.target_class) and (connect := getattr(cached.target, "connect", None)) is not None:
            connect()  # options that the class passes to a library are checked only when it connects
        return cached

    def info(self, path: str, **kwargs: Any) -> Any:
        """The store's metadata of a path, as fresh as the path's rule requires."""
        return self.stoker.info(path, **kwargs)

    def size(self, path: str) -> Any:
        """Bytes of an object."""
        return self.info(path).get("size")

    def sizes(self, paths: list[str]) -> Any:
        """Bytes of objects."""
        return [self.size(path) for path in paths]

    def open(self, path: str, mode: str = "rb", *args: Any, **kwargs: Any) -> Any:
        """Opens a file of the cache, or one that writes through it."""
        if "r" in mode and "+" not in mode:
            return self.stoker.open(path, mode, *args, **kwargs)
        is_committed = kwargs.pop("autocommit", not self._intrans)
        file = self.stoker.open(path, mode, *args, autocommit=is_committed, **kwargs)
        if not is_committed:
            self.transaction.files.append(file)
        self.invalidate_cache(self._parent(path))
        return file

    def get_file(self, rpath: str, lpath: Any, *args: Any, **kwargs: Any) -> None:
        """Copies a file to the local disk."""
        self.stoker.get_file(rpath, lpath, *args, **kwargs)

    def get(self, rpath: Any, lpath: Any, *args: Any, **kwargs: Any) -> None:
        """Copies files to the local disk."""
        self.stoker.get(rpath, lpath, *args, **kwargs)

    def invalidate_cache(self, path: str | None = None) -> None:
        """Makes the next read ask the store again."""
        super().invalidate_cache(path)
        if "stoker" in self.__dict__:
            self.stoker.invalidate_cache(path)


class RoutedAsync(Routed):
    """In front of an asynchronous class: what libraries await reads through the cache as well."""

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        if kwargs:
            return await super()._cat_file(path, start=start, end=end, **kwargs)
        return await asyncio.to_thread(self.stoker.cat_file, path, start, end)

    async def _cat_ranges(self, paths: Any, starts: Any, ends: Any, *args: Any, **kwargs: Any) -> Any:
        return await asyncio.to_thread(self.stoker.cat_ranges, paths, starts, ends, *args, **kwargs)


@functools.cache
def routed_class(protocol: str) -> Any:
    """The class that reads a protocol through the cache.

    Args:
        protocol: as fsspec knows it.
    """
    original = filesystem_class(protocol)
    front = RoutedAsync if issubclass(original, AsyncFileSystem) else Routed
    methods = {name: _forwarded(name) for name in _READS} | {name: _written(name) for name in _WRITES}
    names = {
        **methods,
        "routed_protocol": protocol,
        "__doc__": original.__doc__,
        "__module__": "stoker.cache.filesystem.routing",
        "__qualname__": f"routed_{protocol}",
    }
    kind: Any = type(original)
    return kind(original.__name__, (front, original), names)


def _forwarded(name: str) -> Any:
    def method(self: Routed, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.stoker, name)(*args, **kwargs)

    return functools.update_wrapper(method, getattr(StokerFileSystem, name))


def _written(name: str) -> Any:
    def method(self: Routed, *args: Any, **kwargs: Any) -> Any:
        try:
            return getattr(self.stoker, name)(*args, **kwargs)
        finally:
            # The listing cache of the store's own class, with which the program may have listed.
            super(Routed, self).invalidate_cache()

    return functools.update_wrapper(method, getattr(StokerFileSystem, name))

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
"""Sends pyarrow's reads through the cache: URLs that it would read with its own C++ clients, and fsspec filesystems.

Replaces names of pyarrow, each by a subclass or wrapper that passes on everything that is not routed.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pyarrow.fs as pafs
import pyarrow.parquet as pq

from stoker.cache.filesystem.arrow_files import open_file, reading_columns
from stoker.cache.filesystem.arrow_own import CLASSES, RoutedS3, front, s3_options
from stoker.cache.filesystem.routed import Routed, routed_class
from stoker.cache.filesystem.stoker_filesystem import StokerFileSystem
from stoker.core.patching import Patches

_FileSystem: Any = pafs.FileSystem
_FSSpecHandler: Any = pafs.FSSpecHandler
_HandlerType: Any = type(_FSSpecHandler)
_read_dataset: Any = pq.ParquetDataset.read
_read_file: Any = pq.ParquetFile.read
_init_file: Any = pq.ParquetFile.__init__

_patches = Patches("sends pyarrow's reads through the cache")
_protocols: frozenset[str] = frozenset()


class StokerHandler(_FSSpecHandler):
    """Lets pyarrow read a filesystem of the cache."""

    def get_type_name(self) -> str:
        """The type's name, in the form that pyarrow uses for fsspec."""
        return f"fsspec+stoker+{self.fs.spec.protocol}"

    def open_input_stream(self, path: str) -> Any:
        """A file to read from its start."""
        return open_file(self.fs, path)

    def open_input_file(self, path: str) -> Any:
        """A file to read anywhere."""
        return open_file(self.fs, path)


class _RoutedFileSystemType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _FileSystem)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, _FileSystem)


class RoutedFileSystem(_FileSystem, metaclass=_RoutedFileSystemType):
    """``pyarrow.fs.FileSystem`` whose ``from_uri`` knows the cache."""

    @staticmethod
    def from_uri(uri: Any) -> Any:
        """The filesystem of a URL, and the path in it."""
        options = _options_of(str(uri))
        if options is None:
            return _FileSystem.from_uri(uri)
        parts = urlsplit(str(uri))
        filesystem = routed_class(parts.scheme)(**options).stoker
        path = f"{parts.netloc.rpartition('@')[2]}{unquote(parts.path)}"
        return pafs.PyFileSystem(StokerHandler(filesystem)), path.rstrip("/")


class _RoutedHandlerType(_HandlerType):
    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, _FSSpecHandler)

    def __call__(self, fs: Any) -> Any:
        if isinstance(fs, Routed):
            return StokerHandler(fs.stoker)
        return StokerHandler(fs) if isinstance(fs, StokerFileSystem) else _FSSpecHandler(fs)


class RoutedHandler(_FSSpecHandler, metaclass=_RoutedHandlerType):
    """``pyarrow.fs.FSSpecHandler`` that reads cached files in parallel."""


def install(protocols: Sequence[str]) -> None:
    """Routes pyarrow.

    Args:
        protocols: of URLs that go through the cache.
    """
    global _protocols
    _protocols = frozenset(protocols)
    _patches.set(pafs, "FileSystem", RoutedFileSystem)
    _patches.set(pafs, "FSSpecHandler", RoutedHandler)
    for name in CLASSES:
        route = _routed_s3 if name == "S3FileSystem" else _unrouted
        _patches.set(pafs, name, front(name, route, RoutedFileSystem.from_uri))
    _patches.set(pq.ParquetDataset, "read", _dataset_read)
    _patches.set(pq.ParquetFile, "read", _file_read)
    _patches.set(pq.ParquetFile, "__init__", _file_init)


def uninstall() -> None:
    """Restores pyarrow's own names."""
    _patches.restore()


@functools.wraps(_read_dataset)
def _dataset_read(self: Any, columns: Any = None, *args: Any, **kwargs: Any) -> Any:
    with reading_columns(self.files, columns):
        return _read_dataset(self, columns, *args, **kwargs)


@functools.wraps(_read_file)
def _file_read(self: Any, columns: Any = None, *args: Any, **kwargs: Any) -> Any:
    with reading_columns(getattr(self, "_stoker_paths", ()), columns):
        return _read_file(self, columns, *args, **kwargs)


@functools.wraps(_init_file)
def _file_init(self: Any, source: Any, *args: Any, **kwargs: Any) -> None:
    _init_file(self, source, *args, **kwargs)
    if isinstance(source, str):
        parts = urlsplit(source)
        self._stoker_paths = (f"{parts.netloc.rpartition('@')[2]}{unquote(parts.path)}",)


def _options_of(uri: str) -> dict[str, Any] | None:
    """Options of fsspec's filesystem that mean what the URL says; None for a URL that stays pyarrow's own."""
    parts = urlsplit(uri)
    if parts.scheme not in _protocols:
        return None
    query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    if parts.scheme not in ("s3", "s3a"):
        return {} if not query and "@" not in parts.netloc else None
    user, _, _ = parts.netloc.rpartition("@")
    key, _, secret = user.partition(":")
    named = {"access_key": unquote(key), "secret_key": unquote(secret)}
    return None if "anonymous" in query else s3_options(query | {name: value for name, value in named.items() if value})


def _routed_s3(options: dict[str, Any]) -> Any:
    """A filesystem of the cache in place of an ``S3FileSystem`` with these options, if it can be."""
    known = s3_options(options) if "s3" in _protocols else None
    return None if known is None else RoutedS3(StokerHandler(routed_class("s3")(**known).stoker), options)


def _unrouted(options: dict[str, Any]) -> None:
    """Returns nothing: with any options it stays pyarrow's own."""

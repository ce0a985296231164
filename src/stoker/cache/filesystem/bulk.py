# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
"""Reads of many objects, or of many ranges: in parallel, and ranges of one object together."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

from fsspec import AbstractFileSystem
from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.utils import isfilelike

from stoker.cache.reading.reader import Reader
from stoker.core.processes.forking import per_process

_COPIED_BYTES = 8 << 20
_THREADS = 16


def cat_many(reader: Reader, paths: Sequence[str], on_error: str) -> dict[str, Any]:
    """Contents of objects by path.

    Args:
        reader: of their store.
        paths: of the objects.
        on_error: ``raise``, ``return`` the exception in place of the contents, or ``omit`` the path.
    """
    found = _side_by_side([lambda path=path: reader.read(path) for path in paths], on_error == "raise")
    by_path = dict(zip(paths, found, strict=True))
    if on_error == "omit":
        return {path: data for path, data in by_path.items() if not isinstance(data, Exception)}
    return by_path


def cat_ranges(
    reader: Reader, paths: Sequence[str], starts: Sequence[Any], ends: Sequence[Any], on_error: str
) -> list[Any]:
    """Ranges of objects, in the order asked for; those of one object are of one version.

    Args:
        reader: of their store.
        paths: one for each range.
        starts: first bytes.
        ends: bytes after the last.
        on_error: ``return`` exceptions in place of bytes; anything else raises the first.
    """
    places: dict[str, list[int]] = {}
    for place, path in enumerate(paths):
        places.setdefault(path, []).append(place)

    def ranges_of(path: str) -> list[bytes]:
        return reader.read_many(path, [(starts[place], ends[place]) for place in places[path]])

    calls = [lambda path=path: ranges_of(path) for path in places]
    results: list[Any] = [None] * len(paths)
    for path, found in zip(places, _side_by_side(calls, on_error != "return"), strict=True):
        for number, place in enumerate(places[path]):
            results[place] = found if isinstance(found, Exception) else found[number]
    return results


def get_many(filesystem: Any, rpath: Any, lpath: Any, callback: Any, **options: Any) -> None:
    """Copies objects to the local disk, in parallel.

    Args:
        filesystem: that the paths are of.
        rpath: path, pattern, or list of paths.
        lpath: local path or paths.
        callback: reports progress in files; None for no reports.
        options: as ``AbstractFileSystem.get`` takes them.
    """
    callback = callback or DEFAULT_CALLBACK
    plan = _GetPlan(filesystem)
    AbstractFileSystem.get(cast("AbstractFileSystem", plan), rpath, lpath, **options)
    callback.set_size(len(plan.copies))

    def copy(source: str, target: Any) -> None:
        with callback.branched(source, target) as child:
            filesystem.get_file(source, target, callback=child)

    if len(plan.copies) == 1:
        copy(*plan.copies[0])
        callback.relative_update()
        return
    for _ in _pool().map(copy, *zip(*plan.copies, strict=True)) if plan.copies else ():
        callback.relative_update()


class _GetPlan:
    """Stands for a filesystem where fsspec works out which path goes where, and only notes it."""

    def __init__(self, filesystem: Any) -> None:
        self._filesystem = filesystem
        self.copies: list[tuple[str, Any]] = []

    def get_file(self, rpath: str, lpath: Any, **_: Any) -> None:
        self.copies.append((rpath, lpath))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._filesystem, name)


def copy_out(filesystem: Any, path: str, local: Any, callback: Any, outfile: Any) -> None:
    """Copies an object to a local file, or makes the directory that the path is.

    Args:
        filesystem: that the path is of.
        path: of the object.
        local: path, or a file that is open for writing.
        callback: reports progress in bytes; None for no reports.
        outfile: a file that is open for writing, in place of ``local``.
    """
    callback = callback or DEFAULT_CALLBACK
    outfile = local if outfile is None and bool(isfilelike(local)) else outfile
    # Opening the file uses the same metadata: the store gets one request.
    if outfile is None and filesystem.info(path)["type"] == "directory":
        os.makedirs(local, exist_ok=True)
        return
    with filesystem.open(path, "rb") as source:
        if outfile is not None:
            _copy(source, outfile, callback)
            return
        Path(local).parent.mkdir(parents=True, exist_ok=True)
        with open(local, "wb") as target:
            _copy(source, target, callback)


def _copy(source: Any, target: Any, callback: Any) -> None:
    callback.set_size(getattr(source, "size", None))
    while data := source.read(_COPIED_BYTES):
        target.write(data)
        callback.relative_update(len(data))


def _side_by_side(calls: Sequence[Callable[[], Any]], raises: bool) -> list[Any]:
    """Results of calls in their order; exceptions in place of results, or the first one raised."""
    if len(calls) == 1:
        return [_tried(calls[0], raises)]
    return list(_pool().map(_tried, calls, [raises] * len(calls)))


def _tried(call: Callable[[], Any], raises: bool) -> Any:
    try:
        return call()
    except Exception as error:
        if raises:
            raise
        return error


@per_process
def _pool() -> ThreadPoolExecutor:
    # A separate pool: these threads wait for those that fetch, and must not take their places.
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="stoker-cat")

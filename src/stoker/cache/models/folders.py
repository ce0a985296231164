"""Folders of a store as local ones, for programs that open files by their path only (``from_pretrained``)."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

from stoker.cache.filesystem.resolve_url import open_place, settings_in_use
from stoker.cache.filesystem.stoker_filesystem import StokerFileSystem
from stoker.cache.reading.whole_object import WholeObject
from stoker.cache.settings import CacheSettings
from stoker.cache.warm.preloading import list_items
from stoker.core.errors import ModelFileError
from stoker.core.processes.forking import ForkedLock, Owner
from stoker.core.processes.temporary import locked_folder, remove_abandoned, remove_tree
from stoker.core.progress import ProgressLine

_FOLDER_MODE, _FILE_MODE = 0o500, 0o400

_kept: list[WholeObject] = []
"""Files that folders of this process link to; the cache does not delete them meanwhile."""
_made: list[tuple[Owner, Path, int]] = []
"""Folders with a copy each, and descriptors of their locks: those of a process that was killed go with the next."""
_FAMILY = "stoker-copies-"
_lock = ForkedLock()


def materialise(
    url: str,
    *,
    names: Collection[str] | None = None,
    progress: bool | None = None,
    settings: CacheSettings | None = None,
    options: dict[str, Any] | None = None,
) -> Path:
    """A local, read-only copy of the folder at a URL, for the lifetime of this process.

    Large files are links to files of the cache: they take no extra disk space, processes that map them share memory,
    and they stay for the lifetime of this process, even if evicted. Small ones are copies.

    Args:
        url: of a folder, ``s3://bucket/models/llama``.
        names: only these files of it, which the store need not be able to list; None for all.
        progress: shows a bar on standard error; None does on a terminal.
        settings: of the cache; None for those that are installed, else as ``stoker config show`` has them.
        options: for the store's filesystem.

    Raises:
        FileNotFoundError: nothing is there.
        ModelFileError: a name would lead out of the folder.
        SourceChangedError: a file was replaced while it was read.
    """
    filesystem, path = open_place(url, settings or settings_in_use(), options)
    if names is None:
        found = {item.path: item.size for item in list_items(filesystem, path, is_pattern=False).items}
    else:
        base = path.rstrip("/")
        found = {f"{base}/{name}": int(filesystem.info(f"{base}/{name}")["size"] or 0) for name in names}
    root = _new_root(path.rstrip("/").rpartition("/")[2][:40])
    quiet = progress is False or (progress is None and not sys.stderr.isatty())
    with ProgressLine("materialising", sum(found.values()), sys.stderr, quiet=quiet) as line:

        def report(num_bytes: int, moved: bool) -> None:
            line.advance(num_bytes, moved=moved)

        for each in found:
            _place(filesystem, each, _target(root, path, each), report)
    for folder, _, _ in os.walk(root):
        os.chmod(folder, _FOLDER_MODE)
    return root


def with_own_name(path: Path) -> None:
    """Makes a link to a file of the cache the file itself, for programs that follow no link out of its folder.

    Another name of the file where both are on one disk, else a copy.

    Args:
        path: in a folder that :func:`materialise` made.

    Raises:
        ModelFileError: it is not below one of those.
    """
    folder = path.parent.resolve()
    if path.name in {"", ".."} or not any(folder.is_relative_to(root.resolve()) for _, root, _ in _made):
        raise ModelFileError(f"`{path}` must be in a folder that was materialised here", path=str(path))
    if not path.is_symlink():
        return
    target = path.resolve()
    path.parent.chmod(0o700)
    path.unlink()
    try:
        os.link(target, path)
    except OSError:  # another disk, or one without such names
        shutil.copyfile(target, path)
        path.chmod(_FILE_MODE)
    path.parent.chmod(_FOLDER_MODE)


def _new_root(name: str) -> Path:
    """A new folder of a name, in one that is removed with this process."""
    base = Path(tempfile.gettempdir())
    with _lock:
        if not _made:
            atexit.register(remove_copies)
            remove_abandoned(_FAMILY, base)
        outer, lock = locked_folder(_FAMILY, base)
        _made.append((Owner(), outer, lock))
    root = outer / (name if name not in {"", ".", ".."} else "copy")
    root.mkdir()
    return root


def _target(root: Path, base: str, path: str) -> Path:
    """Where a file goes; names of a store may hold anything."""
    relative = path[len(base) :].lstrip("/") if path.startswith(base) else path
    target = root / (relative or path.rpartition("/")[2])
    if ".." in target.relative_to(root).parts:
        raise ModelFileError(f"`{path}` must not lead out of its folder", path=path)
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


def _place(filesystem: StokerFileSystem, path: str, target: Path, report: Any) -> None:
    with WholeObject(filesystem.pages, filesystem.reader, path, report) as whole:
        whole.begin()
        data = whole.wait(0, whole.size)
        if whole.is_shared and whole.large is not None:
            target.symlink_to(whole.large.path)
            _kept.append(whole)
            return
        target.write_bytes(data)
        target.chmod(_FILE_MODE)


def remove_copies() -> None:
    """Removes all that this process has materialised; at its end that happens by itself."""
    for owner, outer, _ in _made:
        if owner.is_here:
            remove_tree(outer)

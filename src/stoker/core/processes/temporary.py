"""Temporary folders that are gone after their process: a killed one's are removed by the next that makes one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def temporary_folder(prefix: str, parent: Path | None = None, *, family: str | None = None) -> Generator[Path]:
    """An empty folder for the block; its name begins with a prefix.

    Folders of its family whose process was killed are removed before.

    Args:
        prefix: of its name.
        parent: where it is made; by default where temporary files are.
        family: what all names of such folders begin with; the prefix by default.

    Raises:
        OSError: it cannot be made.
    """
    base = parent or Path(tempfile.gettempdir())
    remove_abandoned(family or prefix, base)
    path, descriptor = _made(prefix, base)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def remove_abandoned(family: str, parent: Path) -> None:
    """Removes this user's folders with names of a family whose process has ended.

    Args:
        family: what their names begin with.
        parent: in which they are; it may be missing.
    """
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if entry.name.startswith(family):
                _remove_if_abandoned(entry.path)


def _made(prefix: str, base: Path) -> tuple[Path, int]:
    """A folder, and a descriptor that holds its lock; the kernel drops that with the process."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
        try:
            descriptor = os.open(path, _FLAGS)
        except FileNotFoundError:  # it had no lock yet, and was taken for one that is left
            continue
        with contextlib.suppress(OSError):  # a file system without locks: then nothing is taken for left
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if path.exists():
            return path, descriptor
        os.close(descriptor)


def _remove_if_abandoned(path: str) -> None:
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError:  # another user's, no folder, or gone
        return
    try:
        if os.fstat(descriptor).st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
    except OSError:  # its process lives, or there are no locks
        return
    finally:
        os.close(descriptor)

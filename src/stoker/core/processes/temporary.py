"""Temporary folders that are gone after their process: a killed one's are removed by the next that makes one."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Generator
from pathlib import Path

MARK = ".stoker-temporary"
"""File in each folder of these: one without it was made by someone else, whatever its name."""
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def temporary_folder(prefix: str, parent: Path | None = None, *, family: str | None = None) -> Generator[Path]:
    """An empty folder for the block, in one whose name begins with a prefix.

    Folders of its family whose process was killed are removed before.

    Args:
        prefix: of that name.
        parent: where that is made; by default where temporary files are.
        family: what all names of such folders begin with; the prefix by default.

    Raises:
        OSError: it cannot be made.
    """
    base = parent or Path(tempfile.gettempdir())
    remove_abandoned(family or prefix, base)
    path, descriptor = locked_folder(prefix, base)
    try:
        inside = path / "work"
        inside.mkdir()
        yield inside
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


def remove_tree(path: str | Path) -> None:
    """Removes a folder as far as it can be, folders in it that nobody may write included; links are not followed."""
    for folder, _, _ in os.walk(path):
        with contextlib.suppress(OSError):
            os.chmod(folder, 0o700)
    shutil.rmtree(path, ignore_errors=True)


def locked_folder(prefix: str, base: Path) -> tuple[Path, int]:
    """A folder with the mark, and a descriptor that holds its lock; the kernel drops that with the process.

    Args:
        prefix: of its name.
        base: where it is made.

    Raises:
        OSError: it cannot be made.
    """
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
        try:
            descriptor = os.open(path, _FLAGS)
        except FileNotFoundError:  # it had no lock yet, and was taken for one that is left
            continue
        with contextlib.suppress(OSError):  # a file system without locks: then nothing is taken for left
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        # Behind the lock: who finds it without one finds no process either.
        try:
            os.close(os.open(MARK, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=descriptor))
        except FileNotFoundError:  # it was taken for one that is left in that moment
            os.close(descriptor)
            continue
        except OSError:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                path.rmdir()
            raise
        return path, descriptor


def _remove_if_abandoned(path: str) -> None:
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError:  # another user's, no folder, or gone
        return
    try:
        mark = os.stat(MARK, dir_fd=descriptor, follow_symlinks=False)  # none: it is not one of these
        if os.fstat(descriptor).st_uid == mark.st_uid == os.geteuid() and stat.S_ISREG(mark.st_mode):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_tree(path)
    except OSError:  # it is someone else's, its process lives, or there are no locks
        return
    finally:
        os.close(descriptor)

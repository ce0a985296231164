"""Which files a program reads until its second step: what its trace follows from."""

from __future__ import annotations

import os
import sys
from importlib.util import source_from_cache
from pathlib import Path
from typing import Any

import stoker
from stoker.feed.purity.objects import is_library

_OWN = str(Path(stoker.__file__).parent) + os.sep
_MOST = 2000
"""Files that are noted: what a program's first batches are read from may be more, and says no size."""
_NO_FILES = ("/proc/", "/sys/", "/dev/")


class ReadFiles:
    """Files that python opens for reading and that the program has not written before.

    Libraries' own files are left out: their versions stand for them. What is read without python is not seen.
    """

    def __init__(self) -> None:
        self._names: dict[str, None] = {}
        self._written: set[str] = set()
        self._heard = True

    def install(self) -> None:
        """Listens from now on; python takes no such listener back."""
        sys.addaudithook(self._hear)

    def names(self) -> tuple[str, ...]:
        """What was read until now, with absolute paths, in order; nothing is noted later."""
        self._heard = False
        names = dict.fromkeys(map(_source, self._names))
        return tuple(name for name in names if not (name.startswith(_OWN) or is_library(name)))

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if not self._heard or event not in ("open", "os.rename"):
            return
        try:
            if event == "os.rename":  # as of a file that is written whole under another name
                self._written.add(_absolute(args[1]))
                return
            path, _, flags = args
            if isinstance(path, int):
                return
            name = _absolute(path)
            if _only_reads(flags):
                if name not in self._written and not name.startswith(_NO_FILES) and len(self._names) < _MOST:
                    self._names.setdefault(name)
            elif name not in self._names:
                self._written.add(name)
        except Exception:  # a path of a kind of its own: the program opens it, and fails by itself if it must
            return


def _absolute(path: Any) -> str:
    return os.path.abspath(os.fsdecode(path))


def _only_reads(flags: int) -> bool:
    return not flags & (os.O_WRONLY | os.O_CREAT | os.O_TRUNC)


def _source(name: str) -> str:
    """The source of compiled python; other files as they are."""
    if not name.endswith(".pyc"):
        return name
    try:
        return source_from_cache(name)
    except ValueError:
        return name

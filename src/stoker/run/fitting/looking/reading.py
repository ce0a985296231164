"""Which files a program reads until its second step: what its trace follows from."""

from __future__ import annotations

import functools
import os
import sys
from importlib.util import source_from_cache
from pathlib import Path
from typing import Any

import stoker
from stoker.feed.purity.objects import is_library

_OWN = str(Path(stoker.__file__).parent) + os.sep
_MOST = 2000
"""Files that are noted at most: of a program that reads more, nobody knows all."""
_NO_FILES = ("/proc/", "/sys/", "/dev/")
_MEMORY = "/dev/shm/"


class ReadFiles:
    """Files that python opens for reading and that the program has not written before.

    Libraries' own files are left out, and so is what is read without python, and by other processes of the program.
    """

    def __init__(self) -> None:
        self._names: dict[str, None] = {}
        self._written: set[str] = set()
        self._hears = True

    def install(self) -> None:
        """Listens from now on; python takes no such listener back."""
        sys.addaudithook(self._hear)

    def names(self) -> tuple[str, ...] | None:
        """What was read until now, with absolute paths, in order; None if it was too much. Nothing is noted later."""
        self._hears = False
        found = list(self._names)
        return None if len(found) >= _MOST else tuple(found)

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if not self._hears or event not in ("open", "os.rename"):
            return
        try:
            if event == "os.rename":  # as of a file that is written whole under another name
                self._written.add(_absolute(args[1]))
                return
            path, _, flags = args
            if isinstance(path, int):
                return
            name = _absolute(path)
            if _reads(name, flags):
                self._note(name)
            elif name not in self._names:
                self._written.add(name)
        except Exception:  # a path of an odd kind: the program opens it, and fails by itself if it must
            return

    def _note(self, name: str) -> None:
        if name in self._names or name in self._written or len(self._names) >= _MOST:
            return
        if (not name.startswith(_NO_FILES) or name.startswith(_MEMORY)) and not of_library(name):
            self._names[_source(name)] = None


def of_library(name: str) -> bool:
    """Whether a file is one of stoker or of another library."""
    return name.startswith(_OWN) or _is_of_library(os.path.dirname(name))


@functools.lru_cache(maxsize=1024)
def _is_of_library(folder: str) -> bool:
    return is_library(os.path.join(folder, "_"))


def _absolute(path: Any) -> str:
    """Not normalised: what ``..`` means depends on links."""
    return os.path.join(os.getcwd(), os.fsdecode(path))


def _reads(name: str, flags: int) -> bool:
    """Whether what a file holds can be read; one that is made by opening it holds nothing."""
    if flags & (os.O_WRONLY | os.O_TRUNC):
        return False
    return not flags & os.O_CREAT or os.path.exists(name)


def _source(name: str) -> str:
    """The source of compiled python; other files as they are."""
    if not name.endswith(".pyc"):
        return name
    try:
        return source_from_cache(name)
    except ValueError:
        return name

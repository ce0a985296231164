"""Traces that are kept for the next run of the same program: what one belongs to, and when it is true no more.

A trace belongs to the program's arguments and input, to files below its folder and files that arguments name, the
versions of what computes and the environment that says how. It is true while the files that the program read for it,
wherever they are, hold what they held.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import stat
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import TypeVar

import msgspec

from stoker import __version__
from stoker.core.texts import to_json
from stoker.perf.features.child_process import input_stamp
from stoker.records.exchange_file import EXCHANGE_FILE
from stoker.records.fitting_file import FIT_FILE
from stoker.records.runlog import events_name, header_name

T = TypeVar("T", bound=msgspec.Struct)

_FORM = "7"
"""The form of what is kept of a trace: another one is not read."""
_KEPT = 80
"""Traces that are kept, the latest used ones."""
_LARGEST_HASHED_BYTES = 1024 * 1024
"""Larger files are known by their size and time of change."""
_NEW_EACH_RUN = frozenset({
    "_", "COLUMNS", "COLORTERM", "DISPLAY", "INVOCATION_ID", "JOURNAL_STREAM", "LINES", "MASTER_ADDR", "MASTER_PORT",
    "OLDPWD", "PPID", "PS1", "PWD", "SHLVL", "STY", "TERM", "TMUX", "TMUX_PANE", "WINDOW", "WINDOWID", "XAUTHORITY",
})  # fmt: skip
"""Variables of launchers, shells and terminals, which say no size of a step."""
_KINDS_NEW_EACH_RUN = ("DBUS_", "GPG_", "SSH_", "STOKER_", "TERM_", "TORCHELASTIC_", "VSCODE_", "WAYLAND_", "XDG_")
"""The same by how they begin."""
_LIBRARIES = ("torch", "transformers", "lightning", "pytorch-lightning", "accelerate", "timm", "torchvision")
_MOST_FILES = 2000
"""Files below the program's folder that its fingerprint reads; of a larger folder, these first."""
_MOST_FOLDERS = 1000
_RECORDS = {events_name(0), header_name(0), FIT_FILE, EXCHANGE_FILE}
_NO_PROGRAM = ("stoker-runs", "node_modules", "site-packages", "build", "dist")


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What a file holds."""

    reads: dict[str, str]
    """What the program read, by stamp."""
    found: msgspec.Raw


class KeptTrace:
    """One trace that is kept in a folder.

    Args:
        folder: of all that are kept.
        name: of this one.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._file = folder, folder / f"{name}.json"

    def read(self, kind: type[T]) -> T | None:
        """The trace; None without one, for one that cannot be read, and if a file that the program read has changed."""
        kept = self._kept()
        if kept is None:
            return None
        try:
            found = msgspec.json.decode(kept.found, type=kind)
            os.utime(self._file)
        except (OSError, msgspec.MsgspecError):
            return None
        return found

    def reads(self) -> tuple[str, ...] | None:
        """Files that its program read; None without a trace that is true."""
        kept = self._kept()
        return None if kept is None else tuple(kept.reads)

    def _kept(self) -> _Kept | None:
        try:
            kept = msgspec.json.decode(self._file.read_bytes(), type=_Kept)
        except (OSError, msgspec.MsgspecError):
            return None
        return kept if kept.reads == stamps_of(kept.reads) else None

    def write(self, found: msgspec.Struct, reads: Iterable[str], begun_ns: int) -> None:
        """Keeps it, and forgets the oldest; without room, or a place, nothing is kept.

        Args:
            found: the trace.
            reads: files that the program read for it.
            begun_ns: when it began, of :func:`time.time_ns`. If one of them was written later, nobody knows what the
                program read: nothing is kept, and what was is forgotten.
        """
        stamps = stamps_of(reads)
        try:
            if any(_changed_ns(name) >= begun_ns for name in stamps):
                self._file.unlink(missing_ok=True)
                return
            self._folder.mkdir(parents=True, exist_ok=True)
            part = self._file.with_suffix(f".{os.getpid()}.part")
            part.write_bytes(to_json(_Kept(reads=stamps, found=msgspec.Raw(to_json(found)))))
            part.replace(self._file)
            files = sorted(self._folder.glob("*.json"), key=lambda each: -each.stat().st_mtime_ns)
            for old in files[_KEPT:]:
                old.unlink(missing_ok=True)
        except OSError:
            return


def default_folder() -> Path:
    """Where this user's traces are: ``$XDG_CACHE_HOME/stoker/fits``, or below ``~/.cache``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stoker" / "fits"


def fingerprint(program: Sequence[str]) -> str:
    """A hash of what a program's step follows from, as far as it can be read without running it."""
    digest = hashlib.sha256()
    for part in (
        __version__,
        _FORM,
        sys.version,
        platform.machine(),
        *_versions(),
        *program,
        os.getcwd(),
        input_stamp(),
        *_environment(),
    ):
        digest.update(part.encode("utf-8", "surrogateescape") + b"\0")
    for name, stamp in stamps_of(map(str, _files(program))).items():
        digest.update(f"{name}\0{stamp}\0".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:24]


def stamps_of(files: Iterable[str]) -> dict[str, str]:
    """What tells files from what they were: a hash of a small one, size and time of a large one, nothing of none."""
    return {name: _stamp(name) for name in files}


def _stamp(name: str) -> str:
    try:
        found = os.stat(name)
        if not stat.S_ISREG(found.st_mode):
            return ""
        if found.st_size <= _LARGEST_HASHED_BYTES:
            return _hashed(name, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
    except OSError:
        return ""
    return f"{found.st_size} {found.st_mtime_ns}"


@functools.lru_cache(maxsize=2 * _MOST_FILES)
def _hashed(name: str, *_: int) -> str:
    """A hash of what a file holds, read once while its size and times stay."""
    return hashlib.sha256(Path(name).read_bytes()).hexdigest()


def _changed_ns(name: str) -> int:
    """When a file was written or replaced last; 0 for none."""
    try:
        found = os.stat(name)
        return max(found.st_mtime_ns, found.st_ctime_ns) if stat.S_ISREG(found.st_mode) else 0
    except OSError:
        return 0


def _versions() -> Iterator[str]:
    for name in _LIBRARIES:
        try:
            yield f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue


def _environment() -> Iterator[str]:
    """Variables that a program may read for its sizes, sorted; those of launchers, shells and terminals say nothing."""
    for name, value in sorted(os.environ.items()):
        if name not in _NEW_EACH_RUN and not name.startswith(_KINDS_NEW_EACH_RUN):
            yield f"{name}={value}"


def _files(program: Sequence[str]) -> list[Path]:
    """Files of the program: itself, those below its folder that may say a size, and files that its arguments name."""
    words = [word.partition("=")[2] or word for word in program[1:]]
    named = [Path(word) for word in words if os.path.isfile(word)]
    home = Path.cwd() if program[0] == "-m" else Path(program[0]).absolute().parent
    own = [] if program[0] == "-m" else [Path(program[0]).absolute()]
    return [*own, *sorted(islice(_below(home), _MOST_FILES)), *named]


def _below(home: Path) -> Iterator[Path]:
    """Files that may say a size, those of upper folders first."""
    waiting = deque([str(home)])
    for _ in range(_MOST_FOLDERS):
        if not waiting:
            return
        try:
            found = sorted(os.scandir(waiting.popleft()), key=lambda each: each.name)
        except OSError:
            continue
        if _is_of_run({each.name for each in found}):
            continue
        for each in found:
            if each.is_dir(follow_symlinks=False):
                if not each.name.startswith((".", "__")) and each.name not in _NO_PROGRAM:
                    waiting.append(each.path)
            elif each.name.endswith((".py", ".json", ".yaml", ".yml", ".toml")):
                yield Path(each.path)


def _is_of_run(names: set[str]) -> bool:
    """Whether a folder holds what stoker records of a run, which is new with each, and no python."""
    return bool(names & _RECORDS) and not any(name.endswith(".py") for name in names)

"""The run folder: written during a run, found and read back after it.

Layout: ``run.json`` (one :class:`~stoker.records.events.RunHeader`) and ``events.jsonl`` (one record a line) hold rank
0; rank *k* writes ``run.rankK.json`` and ``events.rankK.jsonl`` in the same folder, so that ranks never share a file.
All ranks of a run carry the same ``run_id``. This module owns the files; readers interpret the records.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from stoker.core.errors import RunFolderError
from stoker.core.processes.forking import Owner
from stoker.core.saying import say
from stoker.core.texts import to_json
from stoker.records.events import FORMAT, AnyEvent, Event, RunEnded, RunHeader

RUNS_FOLDER = "stoker-runs"
"""Where runs go by default, relative to the working directory."""

_HEADER_NAME = re.compile(r"run(?:\.rank(\d+))?\.json")
_LOOKED_AT = 50
"""Latest runs among which that of a program is looked for."""
_PLAIN_ID = re.compile(r"[\w.-]{1,80}")


class _FormatOnly(msgspec.Struct):
    """The one field that every format of ``run.json`` has."""

    format: int


def header_name(rank: int) -> str:
    """The name of a rank's header file."""
    return "run.json" if rank == 0 else f"run.rank{rank}.json"


def events_name(rank: int) -> str:
    """The name of a rank's file of records."""
    return "events.jsonl" if rank == 0 else f"events.rank{rank}.jsonl"


class RunLog:
    """Writes the records of one process into a run folder; a sink of events.

    Nothing is created before the first event. Two sets of counters must not mix in one file. If another process of the
    same rank (a child of the program, say) is writing to the folder, this one writes nothing. If one of the same run
    has written before, this one takes a separate folder next to it (`NAME-2`). No method raises on a file error,
    because a full disk must not end the training program: the log reports the first failure and then writes nothing.

    Note:
        Any thread may call. Each record is one ``write`` of one line to a file opened for appending, so lines of
        several threads do not mix. In a forked child every call does nothing: the parent's run is not the child's.
    """

    def __init__(
        self,
        folder: Path | str,
        header: RunHeader | Callable[[], RunHeader],
        *,
        notify: Callable[[str], None] | None = None,
    ) -> None:
        """Remembers where to write (:attr:`folder`, which the first event may change).

        Args:
            folder: the run folder; created at the first event.
            header: what goes to ``run.json``, or a function asked for it at the first event (when torch is known).
            notify: told in one line when the log has to stop; standard error by default.
        """
        self.folder = Path(folder)
        self._header = header
        self._notify = notify or say
        self._lock = threading.RLock()
        self._owner = Owner()
        self._fd: int | None = None
        self._stopped = False
        self.failed = False
        """Whether records are missing because they could not be written."""
        self.silent = False
        """Whether nothing was written because another process of this rank writes."""

    def on_event(self, event: Event) -> None:
        """Appends one record."""
        if self._stopped or not self._owner.is_here:
            return
        try:
            if self._fd is None:
                self._open()
            self._append(event)
        except (OSError, TypeError, ValueError, msgspec.MsgspecError) as error:
            self._give_up(error)

    __call__ = on_event

    def close(self) -> None:
        """Closes the file; later events are dropped."""
        with self._lock:
            self._stopped = True
            if self._fd is not None and self._owner.is_here:
                with contextlib.suppress(OSError):
                    os.close(self._fd)
            self._fd = None

    def _open(self) -> None:
        with self._lock:
            if self._fd is not None or self._stopped:
                return
            header = self._header() if callable(self._header) else self._header
            self.folder, self._fd = _take(self.folder, header)
            if self._fd is None:
                self._stopped = self.silent = True
                return
            _write_whole(self.folder / header_name(header.rank), msgspec.json.format(to_json(header)))

    def _append(self, event: Event) -> None:
        fd = self._fd
        if fd is None:
            return
        line = to_json(event) + b"\n"
        if os.write(fd, line) != len(line):
            raise OSError("the record was written only in part")

    def _give_up(self, error: Exception) -> None:
        with self._lock:
            if self._stopped:
                return
            self._stopped = self.failed = True
        self._notify(f"run folder `{self.folder}` cannot be written ({error}); this run continues without it")


def _keep_out_of_git(runs: Path) -> None:
    """Runs hold arguments and paths of this machine: they stay out of the user's repository unless asked in."""
    ignore = runs / ".gitignore"
    if runs.name == RUNS_FOLDER and not ignore.exists():
        ignore.write_text("*\n", encoding="utf-8")


def _take(folder: Path, header: RunHeader) -> tuple[Path, int | None]:
    """The folder that is this process's, and its file of records; none where another process is writing there."""
    first = folder
    for number in itertools.count(2):
        folder.mkdir(parents=True, exist_ok=True)
        _keep_out_of_git(folder.parent)
        _set_aside(folder, header)
        had_records = (folder / header_name(header.rank)).exists()
        fd = _open_alone(folder / events_name(header.rank))
        if fd is None or not had_records:
            return folder, fd
        os.close(fd)  # the records are of an earlier process of this run, which has ended
        folder = first.with_name(f"{first.name}-{number}")
    raise AssertionError  # there is always a next number


def _open_alone(path: Path) -> int | None:
    """A descriptor for appending that no other process holds; None where one does."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        # The kernel drops this lock with the last descriptor: nothing to clean up after kill -9.
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    except OSError:
        # A file system without locks: another writer cannot be detected.
        return fd
    return fd


def _set_aside(folder: Path, header: RunHeader) -> None:
    """Renames this rank's files of an earlier run in the same folder (``--run-dir`` used twice)."""
    path = folder / header_name(header.rank)
    if not path.exists():
        return
    try:
        earlier = _read_header(path).run_id
    except RunFolderError:
        earlier = "damaged"
    if earlier == header.run_id:
        return
    label = earlier if _PLAIN_ID.fullmatch(earlier) else "earlier"
    for name in (header_name(header.rank), events_name(header.rank)):
        if (folder / name).exists():
            (folder / name).replace(folder / f"earlier-{label}-{name}")


def _write_whole(path: Path, content: bytes) -> None:
    """Writes a file so that a reader sees all of it or none."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_bytes(content + b"\n")
    part.replace(path)


@dataclass(frozen=True, kw_only=True)
class Run:
    """One rank's records of a run, in the order of time."""

    header: RunHeader
    events: list[AnyEvent]
    folder: Path | None = None
    """Where the records were read; none for a run still in memory."""
    ranks: tuple[int, ...] = field(default=(0,))
    """Every rank that left records of this run."""
    skipped: int = 0
    """Lines that could not be read (a torn last line counts)."""


def read_run(folder: Path | str, rank: int | None = None) -> Run:
    """Reads one rank of a run folder; the lowest rank there is by default.

    Raises:
        RunFolderError: no run there, no such rank, a damaged header, or a newer format than this stoker reads.
    """
    folder = Path(folder)
    headers = _read_headers(folder)
    if rank is None:
        rank = min(headers)
    if rank not in headers:
        raise RunFolderError(
            f"`--rank` must be one of {', '.join(map(str, headers))} for run `{folder}`, got {rank}",
            folder=str(folder),
        )
    events, skipped = _read_events(folder / events_name(rank))
    return Run(header=headers[rank], events=events, folder=folder, ranks=tuple(headers), skipped=skipped)


def has_records(folder: Path | str, run_id: str) -> bool:
    """Whether any process has left records of this run, or of any run where ``run_id`` is empty."""
    try:
        headers = _read_headers(Path(folder))
    except RunFolderError:
        return False
    return any(run_id in ("", header.run_id) for header in headers.values())


def read_ranks(folder: Path | str) -> list[Run]:
    """Reads every rank of a run folder, in the order of rank."""
    return [read_run(folder, rank) for rank in _read_headers(Path(folder))]


def latest_run(root: Path | str) -> Path:
    """The folder under ``root`` whose run started last.

    Raises:
        RunFolderError: ``root`` holds no run.
    """
    root = Path(root)
    runs = list(_started(root))
    if not runs:
        raise RunFolderError(
            f"`{root}` holds no run; make one with `stoker run train.py`, or name a run folder", folder=str(root)
        )
    return max(runs)[1]


def interrupted_run(root: Path | str, argv: Sequence[str], cwd: str) -> Run | None:
    """The latest run of a program, if it has neither an end nor a process that writes to it.

    Args:
        root: folder of runs.
        argv: the program and its arguments, as headers have them.
        cwd: where it ran, as headers have it.
    """
    folders = sorted((each for each in Path(root).iterdir() if each.is_dir()), key=lambda each: each.stat().st_mtime)
    for folder in reversed(folders[-_LOOKED_AT:]):
        try:
            run = read_run(folder)
        except RunFolderError:
            continue
        if run.header.argv == list(argv) and run.header.cwd == cwd:
            has_ended = any(isinstance(event, RunEnded) for event in run.events)
            return None if has_ended or _is_written(folder / events_name(run.header.rank)) else run
    return None


def is_in_use(folder: Path | str) -> bool:
    """Whether a process writes records of rank 0 to a run folder."""
    return _is_written(Path(folder) / events_name(0))


def _is_written(path: Path) -> bool:
    """Whether a process holds a file of records."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(fd)
    return False


def find_run(name: str | None, root: Path | str = RUNS_FOLDER) -> Path:
    """The run that a person means: a folder, the name of one under ``root``, or the latest.

    Raises:
        RunFolderError: there is no such run.
    """
    if name is None:
        return latest_run(root)
    for folder in (Path(name), Path(root) / name):
        if folder.is_file() and _HEADER_NAME.fullmatch(folder.name):
            return folder.parent
        if folder.is_dir():
            # A folder of runs, such as `stoker-runs` itself, stands for its latest run.
            return folder if any(_header_files(folder)) else latest_run(folder)
    raise RunFolderError(f"`{name}` is not a run folder, nor the name of one under `{root}`", folder=name)


def _started(root: Path) -> Iterator[tuple[float, Path]]:
    for folder in sorted(root.iterdir()) if root.is_dir() else []:
        for path in sorted(_header_files(folder)) if folder.is_dir() else []:
            try:
                started = _read_header(path).started_unix_s
            except RunFolderError:
                started = path.stat().st_mtime
            yield started, folder
            break


def _header_files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.glob("run*.json") if _HEADER_NAME.fullmatch(path.name))


def _read_headers(folder: Path) -> dict[int, RunHeader]:
    """Headers by rank. Ranks left over from an earlier run in the same folder carry another ``run_id``: dropped."""
    if not folder.is_dir():
        raise RunFolderError(f"`{folder}` is not a folder; `stoker report` takes a run folder", folder=str(folder))
    found: dict[int, RunHeader] = {}
    for path in _header_files(folder):
        match = _HEADER_NAME.fullmatch(path.name)
        found[int(match.group(1) or 0) if match else 0] = _read_header(path)
    if not found:
        raise RunFolderError(
            f"`{folder}` holds no `run.json`, so it is not a run folder; runs are under `{RUNS_FOLDER}`",
            folder=str(folder),
        )
    newest = max(found.values(), key=lambda header: header.started_unix_s).run_id
    return {rank: found[rank] for rank in sorted(found) if found[rank].run_id == newest}


def _read_header(path: Path) -> RunHeader:
    try:
        content = path.read_bytes()
        number = msgspec.json.decode(content, type=_FormatOnly).format
        if number > FORMAT:
            raise RunFolderError(
                f"`{path}` has format {number}, this stoker reads up to {FORMAT}; upgrade with `pip install -U stoker`",
                path=str(path),
                format=number,
            )
        return msgspec.json.decode(content, type=RunHeader)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RunFolderError(f"`{path}` cannot be read as a run header: {error}", path=str(path)) from error


def _read_events(path: Path) -> tuple[list[AnyEvent], int]:
    """The readable records in the order of time, and how many lines were not readable."""
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return [], 0
    except OSError as error:
        raise RunFolderError(f"`{path}` cannot be read: {error}", path=str(path)) from error
    decoder = msgspec.json.Decoder[AnyEvent](AnyEvent)
    events: list[AnyEvent] = []
    skipped = 0
    for line in lines:
        if not line.strip():
            continue
        try:
            events.append(decoder.decode(line))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            skipped += 1
    events.sort(key=lambda event: event.t_s)
    return events, skipped

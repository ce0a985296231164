"""Traces of a program, as it is and in the form of a plan: each in a child, and kept for the next run of the same.

A trace belongs to the program's files, its arguments and input, the versions of what computes and the environment that
says how. Files that are elsewhere, as those of a package in development, are known once it was traced.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import tempfile
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import msgspec

from stoker import __version__
from stoker.core.errors import TracingError
from stoker.core.saying import said_to
from stoker.core.texts import to_json
from stoker.perf.features.child_process import input_stamp
from stoker.perf.features.lifetimes import MemoryTimeline
from stoker.perf.features.program import CHILD as FEATURES_CHILD
from stoker.perf.features.program import TracedProgram, trace_program, trace_whole
from stoker.perf.features.records import StepFeatures
from stoker.records.fitting import FitPlan, TracedModel

CHILD = "stoker.run.fitting.child"
BF16 = "bf16"
"""In the place of a plan: the program with autocast around its model."""
_FORM = "6"
"""The form of what is kept of a trace: another one is not read."""
_KEPT = 40
"""Traces that are kept, the latest used ones."""
_MOST_FILES = 2000
"""Python files below the program's folder that its fingerprint reads; of a larger folder, these first by name."""
_NEW_EACH_RUN = frozenset({
    "_", "COLUMNS", "COLORTERM", "DISPLAY", "INVOCATION_ID", "JOURNAL_STREAM", "LINES", "MASTER_ADDR", "MASTER_PORT",
    "OLDPWD", "PPID", "PS1", "PWD", "SHLVL", "STY", "TERM", "TMUX", "TMUX_PANE", "WINDOW", "WINDOWID", "XAUTHORITY",
})  # fmt: skip
"""Variables of launchers, shells and terminals, which say no size of a step."""
_KINDS_NEW_EACH_RUN = ("DBUS_", "GPG_", "SSH_", "STOKER_", "TERM_", "TORCHELASTIC_", "VSCODE_", "WAYLAND_", "XDG_")
"""The same by how they begin."""
_LIBRARIES = ("torch", "transformers", "lightning", "pytorch-lightning", "accelerate", "timm", "torchvision")


class TracedFit(msgspec.Struct, frozen=True, kw_only=True):
    """A program's step, its memory and its model."""

    features: StepFeatures
    timeline: MemoryTimeline
    model: TracedModel
    sources: dict[str, str]
    """What the program's own source files held, by hash."""


@dataclass(frozen=True, slots=True)
class Certified:
    """A program traced in the form of a plan.

    Attributes:
        features, timeline: of its step.
        left: what of the plan could not be applied, by the path of a module or the kind of a measure, and why.
    """

    features: StepFeatures
    timeline: MemoryTimeline
    left: dict[str, str]


def trace(program: Sequence[str], target: str, *, folder: Path | None = None) -> TracedFit:
    """The program as it is.

    Args:
        program: a script, or ``-m`` and a module, and arguments.
        target: whose kernels are chosen, ``cuda`` or ``cpu``.
        folder: where traces are kept; None for the user's.

    Raises:
        TracingError: it cannot be traced.
    """
    kept = _Kept(folder or default_folder(), f"{fingerprint(program)}-{target}")
    found = kept.read(TracedFit)
    if found is not None and found.sources == contents_of(found.sources):
        return found
    with unseen(shows_errors=True):
        traced, model = look(program, target)
    found = TracedFit(
        features=traced.features, timeline=traced.timeline, model=model, sources=contents_of(model.sources)
    )  # fmt: skip
    kept.write(found)
    return found


def look(
    program: Sequence[str], target: str, *, hints: Mapping[str, float] | None = None, evaluates: bool = False
) -> tuple[TracedProgram, TracedModel]:
    """The program as it is, traced now, and what may be done to its model.

    Args:
        program: as above.
        target: as above.
        hints: sizes that depend on computed values.
        evaluates: whether it goes on to its first evaluation.

    Raises:
        TracingError: it cannot be traced.
    """
    with tempfile.TemporaryDirectory(prefix="stoker-fit-") as place:
        facts = Path(place, "model.json")
        child = (CHILD, "-", str(facts))
        traced = trace_whole(program, target=target, hints=hints, evaluates=evaluates, child=child)
        return traced, msgspec.json.decode(facts.read_bytes(), type=TracedModel)


def trace_plan(program: Sequence[str], target: str, plan: FitPlan) -> Certified:
    """The program in the form of a plan; arguments and errors as of :func:`trace`."""
    with tempfile.TemporaryDirectory(prefix="stoker-fit-") as place:
        given, came = Path(place, "plan.json"), Path(place, "applied.json")
        given.write_bytes(to_json(plan))
        with unseen():
            features, timeline = trace_program(program, target=target, child=(CHILD, str(given), str(came)))
        left = msgspec.json.decode(came.read_bytes(), type=dict[str, str])
    return Certified(features, timeline, left)


def trace_changed(
    program: Sequence[str], target: str, *, batch_times: float = 1, autocast: bool = False
) -> tuple[StepFeatures, MemoryTimeline]:
    """The program with smaller batches, or with bf16 in its models; errors as of :func:`trace`.

    Args:
        program: as of :func:`trace`.
        target: as of :func:`trace`.
        batch_times: size of its loaders' batches by what they are.
        autocast: whether its models compute in bf16.
    """
    child = (CHILD, BF16, "") if autocast else (FEATURES_CHILD,)
    with unseen():
        return trace_program(program, target=target, batch_times=batch_times, child=child)


@contextmanager
def unseen(*, shows_errors: bool = False) -> Generator[None]:
    """Hides what the program prints while it is traced: it prints the same, with numbers that are true, when it runs.

    Args:
        shows_errors: whether it is shown after all if the program cannot be traced.
    """
    with tempfile.TemporaryDirectory(prefix="stoker-fit-") as place:
        log = Path(place, "printed")
        try:
            with said_to(log):
                yield
        except TracingError:
            if shows_errors and log.exists():
                os.write(2, log.read_bytes())
            raise


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
    for file in _files(program):
        digest.update(str(file).encode("utf-8", "surrogateescape") + b"\0")
        digest.update(_content(file).encode())
    return digest.hexdigest()[:24]


def contents_of(files: Iterable[str]) -> dict[str, str]:
    """What files hold now, by hash."""
    return {name: _content(Path(name)) for name in files}


def _content(file: Path) -> str:
    """A hash of what is in a file; empty for one that cannot be read."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return ""


def _versions() -> Iterable[str]:
    for name in _LIBRARIES:
        try:
            yield f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            continue


def _environment() -> Iterable[str]:
    """Variables that a program may read for its sizes, sorted; those of launchers, shells and terminals say nothing."""
    for name, value in sorted(os.environ.items()):
        if name not in _NEW_EACH_RUN and not name.startswith(_KINDS_NEW_EACH_RUN):
            yield f"{name}={value}"


def _files(program: Sequence[str]) -> list[Path]:
    """Files of the program: itself, Python files below its folder, and files that its arguments name."""
    words = [Path(word) for word in program[1:] if not word.startswith("-")]
    named = [word for word in words if word.is_file()]
    home = Path.cwd() if program[0] == "-m" else Path(program[0]).absolute().parent
    own = [] if program[0] == "-m" else [Path(program[0]).absolute()]
    return [*own, *sorted(_below(home))[:_MOST_FILES], *named]


def _below(home: Path) -> Iterable[Path]:
    for folder, inner, names in os.walk(home):
        inner[:] = [each for each in inner if not each.startswith((".", "__")) and each not in _NO_PROGRAM]
        yield from (Path(folder, name) for name in names if name.endswith((".py", ".json", ".yaml", ".yml", ".toml")))


_NO_PROGRAM = ("stoker-runs", "node_modules", "site-packages", "build", "dist")


class _Kept:
    """One trace that is kept in a folder.

    Args:
        folder: of all that are kept.
        name: of this one.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._file = folder, folder / f"{name}.json"

    def read(self, kind: type[TracedFit]) -> TracedFit | None:
        """The trace; None without one, or for one that cannot be read."""
        try:
            found = msgspec.json.decode(self._file.read_bytes(), type=kind)
            os.utime(self._file)
        except (OSError, msgspec.MsgspecError):
            return None
        return found

    def write(self, found: TracedFit) -> None:
        """Keeps it, and forgets the oldest; without room, or a place, nothing is kept."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            part = self._file.with_suffix(f".{os.getpid()}.part")
            part.write_bytes(to_json(found))
            part.replace(self._file)
            files = sorted(self._folder.glob("*.json"), key=lambda each: -each.stat().st_mtime_ns)
            for old in files[_KEPT:]:
                old.unlink(missing_ok=True)
        except OSError:
            return

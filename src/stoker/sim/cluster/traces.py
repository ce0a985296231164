"""Jobs of published traces and of tables: arrivals, GPUs and durations, and the CPUs that their input needs.

A row that breaks a rule is named with its line, column and value. What a trace does not say is assumed, and each
assumption is a sentence of the table.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np

from stoker.core.errors import ConfigError, JobTableError
from stoker.scale.cluster.state import FloatArray, IntArray

TRACE_FILES = {"philly": "philly_2017.csv", "v2023": "alibaba_gpu_v2023_pods.csv", "muri": "muri_trace1.csv"}
"""Files of the traces that are known by name, in the folder of `--traces`."""
V2023_DENSE_S = 10.0e6
"""99 % of the pods of the v2023 trace are created after this; the months before are nearly empty."""


@dataclass(frozen=True, kw_only=True)
class TracedJobs:
    """Columns of a trace, ordered by arrival."""

    name: str
    arrival_s: FloatArray
    gpus: IntArray
    duration_s: FloatArray
    """At full speed."""
    need_per_gpu: FloatArray | None = None
    """CPUs for each GPU at full speed; None where the trace does not say."""
    movable: np.ndarray[tuple[int, ...], np.dtype[np.bool_]] | None = None
    models: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    weight: FloatArray | None = None
    priority: IntArray | None = None
    resumable: np.ndarray[tuple[int, ...], np.dtype[np.bool_]] | None = None
    notes: tuple[str, ...] = ()


Row = Mapping[str, str]


@dataclass(frozen=True)
class _Cells:
    """A row of a table, by column, with its line for messages."""

    path: Path
    line: int
    row: Row

    def number(self, column: str, rule: str, test: Callable[[float], bool], default: float | None = None) -> float:
        text = (self.row.get(column) or "").strip()
        if not text and default is not None:
            return default
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if math.isnan(value) or not test(value):
            raise self.wrong(column, rule, text)
        return value

    def positive(self, column: str, default: float | None = None) -> float:
        return self.number(column, "a positive number", lambda value: 0 < value < math.inf, default)

    def at_least_0(self, column: str, default: float | None = None) -> float:
        return self.number(column, "a number of at least 0", lambda value: 0 <= value < math.inf, default)

    def whole(self, column: str, least: int, default: float | None = None) -> int:
        rule = f"a whole number of at least {least}"
        return int(self.number(column, rule, lambda value: value >= least and value == int(value), default))

    def flag(self, column: str, default: bool) -> bool:
        text = (self.row.get(column) or "").strip().lower()
        if text in ("", "1", "0", "true", "false", "yes", "no"):
            return default if not text else text in ("1", "true", "yes")
        raise self.wrong(column, "0 or 1", text)

    def time(self, column: str) -> float:
        text = (self.row.get(column) or "").strip()
        try:
            return datetime.fromisoformat(text).timestamp()
        except ValueError:
            raise self.wrong(column, "a date and time such as 2017-10-09 07:01:55", text) from None

    def wrong(self, column: str, rule: str, value: str) -> JobTableError:
        return JobTableError(
            f"`{column}` in line {self.line} of `{self.path.name}` must be {rule}, got {value!r}",
            path=str(self.path), row=f"line {self.line}", column=column, value=value, rule=rule,
        )  # fmt: skip


def find_trace(name: str, folder: Path | None) -> Path:
    """The file of a trace by name, or of a table by path.

    Raises:
        ConfigError: it is neither, or the folder of the traces is not given or lacks it.
    """
    if name not in TRACE_FILES:
        path = Path(name)
        if path.suffix.lower() == ".csv" or path.exists():
            return path
        raise ConfigError(f"`TRACE` must be {', '.join(TRACE_FILES)} or a CSV file, got {name!r}")
    if folder is None:
        raise ConfigError(
            f"`--traces DIR` must name the folder that holds {TRACE_FILES[name]}; to simulate jobs of your own: "
            "stoker sim FILE.csv"
        )
    path = folder / TRACE_FILES[name]
    if not path.is_file():
        raise ConfigError(f"`--traces` must name a folder that holds {TRACE_FILES[name]}, got `{folder}`")
    return path


PAI_FILES = tuple(f"pai_minibatch_job_{number}.csv" for number in (1, 2, 3, 4))


def read_stragglers(folder: Path | None) -> tuple[float, ...]:
    """How much longer the slowest worker of a step takes than their mean: the median over steps, of each PAI job.

    Raises:
        ConfigError: the folder of the traces is not given or lacks a file.
        JobTableError: a value breaks its rule.
    """
    if folder is None or not all((folder / name).is_file() for name in PAI_FILES):
        given = "nothing" if folder is None else f"`{folder}`"
        raise ConfigError(f"`--traces` must name a folder that holds {', '.join(PAI_FILES)}, got {given}")
    return tuple(_straggler(folder / name) for name in PAI_FILES)


def _straggler(path: Path) -> float:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        steps: dict[float, list[float]] = {}
        for cells in _rows(path, reader):
            steps.setdefault(cells.at_least_0("time"), []).append(cells.at_least_0("batch_time_norm"))
    whole = max(map(len, steps.values()))
    ratios = [max(times) * len(times) / sum(times) for times in steps.values() if len(times) == whole and sum(times)]
    return float(np.median(ratios))


def read_trace(path: Path) -> TracedJobs:
    """The jobs of a file: a known trace by its header, else a table of jobs.

    Raises:
        JobTableError: it cannot be read, a column is missing, or a value breaks its rule.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            return _read(path, csv.DictReader(file))
    except OSError as error:
        raise JobTableError(f"`{path}` must be a file that can be read: {error.strerror}", path=str(path)) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise JobTableError(f"`{path}` must be CSV in UTF-8, got something else: {error}", path=str(path)) from None


def _read(path: Path, reader: csv.DictReader[str]) -> TracedJobs:
    head = [name.strip() for name in reader.fieldnames or ()]
    reader.fieldnames = head
    for needed, read in _READERS:
        if needed <= set(head):
            return read(path, _rows(path, reader))
    wanted = next(column for column in ("arrival_s", "gpus", "duration_s") if column not in head)
    raise JobTableError(
        f"`{wanted}` must be a column of `{path.name}`, got {', '.join(head)[:200] or 'an empty file'}; the columns: "
        "stoker sim --schema",
        path=str(path), column=wanted,
    )  # fmt: skip


def _rows(path: Path, reader: csv.DictReader[str]) -> Iterator[_Cells]:
    for row in reader:
        if None in row.values() or None in row:
            count = sum(value is not None for value in row.values()) + len(row.get(None, ()))
            raise JobTableError(
                f"line {reader.line_num} of `{path.name}` must have {len(reader.fieldnames or ())} cells, as the first "
                f"line has, got {count}",
                path=str(path), row=f"line {reader.line_num}",
            )  # fmt: skip
        yield _Cells(path, reader.line_num, row)


def _sorted(name: str, columns: Mapping[str, Sequence[float]], **more: object) -> TracedJobs:
    arrival = np.array(columns["arrival_s"], dtype=np.float64)
    if not len(arrival):
        raise JobTableError(f"`{name}` must have at least one job, got none", path=name)
    order = np.argsort(arrival, kind="stable")
    found: dict[str, object] = {"arrival_s": (arrival - arrival.min())[order]}
    kinds = {"gpus": np.int64, "priority": np.int64, "movable": np.bool_, "resumable": np.bool_}
    for key, values in columns.items():
        if key != "arrival_s":
            found[key] = np.array(values, dtype=kinds.get(key, np.float64))[order]
    for key in ("models", "users"):
        if key in more:
            texts: list[str] = list(more.pop(key))  # type: ignore[call-overload]
            places: list[int] = order.tolist()
            found[key] = tuple(texts[place] for place in places)
    return TracedJobs(name=name, **found, **more)  # type: ignore[arg-type]


def _philly(path: Path, rows: Iterator[_Cells]) -> TracedJobs:
    arrivals: list[float] = []
    gpus: list[float] = []
    durations: list[float] = []
    skipped = 0
    for cells in rows:
        duration = cells.at_least_0("duration")
        count = cells.whole("num_gpus", 0)
        if not duration or not count:
            skipped += 1
            continue
        arrivals.append(cells.time("timestamp"))
        gpus.append(count)
        durations.append(duration)
    notes = ["durations are taken as those at full speed"]
    if skipped:
        notes.append(f"{skipped:,} jobs without GPUs or of no duration are left out")
    columns = {"arrival_s": arrivals, "gpus": gpus, "duration_s": durations}
    return _sorted("Philly, 2017", columns, notes=tuple(notes))


def _v2023(path: Path, rows: Iterator[_Cells]) -> TracedJobs:
    arrivals: list[float] = []
    gpus: list[float] = []
    durations: list[float] = []
    needs: list[float] = []
    without = shared = early = pending = 0
    for cells in rows:
        count = cells.whole("num_gpu", 0)
        if not count:
            without += 1
        elif count == 1 and cells.at_least_0("gpu_milli") < 1000:
            shared += 1
        elif not (cells.row.get("scheduled_time") or "").strip():
            pending += 1
        else:
            created = cells.at_least_0("creation_time")
            life = cells.at_least_0("deletion_time") - cells.at_least_0("scheduled_time")
            if created < V2023_DENSE_S or life <= 0.0:
                early += 1
                continue
            arrivals.append(created)
            gpus.append(count)
            durations.append(life)
            needs.append(max(0.1, cells.at_least_0("cpu_milli") / 1000.0 / count))
    notes = (
        "a pod's life is taken as its duration at full speed, its requested CPUs as what full speed needs",
        f"left out: {without:,} pods without a GPU, {shared:,} that share one, {pending:,} never scheduled, {early:,} "
        "of the sparse first months or of no duration",
    )
    columns = {"arrival_s": arrivals, "gpus": gpus, "duration_s": durations, "need_per_gpu": needs}
    return _sorted("Alibaba's GPU trace of 2023", columns, notes=notes)


STATIONARY = ("a2c", "dqn")
"""Models of Muri whose CPU stage is the environment that they learn from: it cannot run elsewhere."""


def _muri(path: Path, rows: Iterator[_Cells]) -> TracedJobs:
    arrivals: list[float] = []
    gpus: list[float] = []
    durations: list[float] = []
    needs: list[float] = []
    movable: list[bool] = []
    models: list[str] = []
    for cells in rows:
        model = (cells.row.get("model_name") or "").strip()
        iterations = cells.positive("iterations")
        cpu_ms, gpu_ms, network_ms = (cells.at_least_0(f"resource_time_{stage}") for stage in range(3))
        moves = model not in STATIONARY
        # Stages overlap. With CPUs enough an iteration takes its longest other stage; where the CPU stage is the
        # program's own, it takes what it took.
        whole_ms = max(gpu_ms, network_ms, 1e-3) if moves else cells.positive("iteration_time")
        arrivals.append(cells.at_least_0("submit_time") / 1000.0)
        gpus.append(cells.whole("num_gpu", 1))
        durations.append(iterations * whole_ms / 1000.0)
        needs.append(max(0.05, cpu_ms / whole_ms) if moves else 1.0)
        movable.append(moves)
        models.append(model)
    notes = (
        "stages of a step overlap; at full speed it takes the longest of GPU and network, and the CPU stage was "
        "profiled with one CPU a GPU (see --cpu-scale)",
        f"{movable.count(False):,} jobs of {' and '.join(STATIONARY)} keep their CPU stage, which cannot move",
    )
    columns = {
        "arrival_s": arrivals, "gpus": gpus, "duration_s": durations, "need_per_gpu": needs, "movable": movable,
    }  # fmt: skip
    return _sorted("Muri, SIGCOMM 2022", columns, models=models, notes=notes)


def _table(path: Path, rows: Iterator[_Cells]) -> TracedJobs:
    columns: dict[str, list[float]] = {
        name: [] for name in ("arrival_s", "gpus", "duration_s", "movable", "weight", "priority", "resumable")
    }
    needs: list[float] = []
    users: list[str] = []
    models: list[str] = []
    for cells in rows:
        columns["arrival_s"].append(cells.at_least_0("arrival_s"))
        columns["gpus"].append(cells.whole("gpus", 1))
        columns["duration_s"].append(cells.positive("duration_s"))
        columns["movable"].append(cells.flag("movable", True))
        columns["resumable"].append(cells.flag("resumable", False))
        columns["weight"].append(cells.positive("weight", 1.0))
        columns["priority"].append(cells.whole("priority", -1_000_000, 0))
        if "cpus_per_gpu" in cells.row:
            needs.append(cells.positive("cpus_per_gpu"))
        users.append((cells.row.get("user") or "").strip())
        models.append((cells.row.get("model") or "").strip())
    if needs:
        columns["need_per_gpu"] = needs
    return _sorted(path.name, columns, users=users, models=models)


SCHEMA: tuple[tuple[str, bool, str, str], ...] = (
    ("arrival_s", True, "when the job arrives, in s from any origin", "a number of at least 0"),
    ("gpus", True, "GPUs that it takes, all at once", "a whole number of at least 1"),
    ("duration_s", True, "how long it takes at full speed, in s", "a positive number"),
    ("cpus_per_gpu", False, "CPUs for each GPU at full speed", "a positive number"),
    ("model", False, "for --demand synergy: a model of Synergy", "text"),
    ("movable", False, "whether its data workers may run on other nodes", "0 or 1 (default 1)"),
    ("resumable", False, "whether it may be preempted", "0 or 1 (default 0)"),
    ("weight", False, "how much its completion counts", "a positive number (default 1)"),
    ("priority", False, "its class: a higher one goes first", "a whole number (default 0)"),
    ("user", False, "whose it is, for quotas", "text"),
)
"""Columns of a table of jobs: name, whether it is required, meaning, rule."""

_READERS: tuple[tuple[set[str], Callable[[Path, Iterator[_Cells]], TracedJobs]], ...] = (
    ({"timestamp", "duration", "num_gpus"}, _philly),
    ({"num_gpu", "gpu_milli", "cpu_milli", "creation_time", "deletion_time", "scheduled_time"}, _v2023),
    ({"model_name", "iterations", "num_gpu", "submit_time", "resource_time_0", "resource_time_1"}, _muri),
    ({"arrival_s", "gpus", "duration_s"}, _table),
)

"""A trace of requests: when they arrived, and how many samples they had; from a file, or from the run of a service."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

from stoker.core.errors import ConfigError
from stoker.records.events import Event, ServedWindow
from stoker.sim.serving import Arrival

_TIME, _SAMPLES = "at_s", "samples"
_LEAST = 2
_ARRIVED = ("answered", "refused", "dropped", "failed", "cancelled")
"""What became of requests that an engine would compute; malformed ones never reach the queue."""


def read_arrivals(path: Path, samples: int = 1) -> list[Arrival]:
    """The requests of a file, from the time of the first one on.

    A line is a time in seconds, or a time and a number of samples with a comma between them. A header may name the
    columns instead: ``at_s``, ``samples``, and any others. Empty lines and those with ``#`` in front count for nothing.

    Args:
        path: of the file.
        samples: of requests where the file does not say.

    Raises:
        ConfigError: it cannot be read, or times are negative, go back, or span no time.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"`--arrivals` must be a run folder or a text file that can be read, got {path}: {error}"
        ) from None
    rows = [
        (number, [cell.strip() for cell in line.split(",")])
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    columns = {_TIME: 0, _SAMPLES: 1}
    if rows and not _parses(rows[0][1][0]):
        names = rows.pop(0)[1]
        if _TIME not in names:
            raise ConfigError(f"`{path}` must name a column {_TIME} in its first line, got {', '.join(names)[:80]}")
        columns = {name: at for at, name in enumerate(names)}
    found = list(_requests(path, rows, columns, samples))
    return _from_first(path, found, "a line is a time in seconds, or TIME,SAMPLES")


def recorded_arrivals(
    folder: Path, events: Sequence[Event], model: str | None = None, samples: int = 1, seed: int = 0
) -> list[Arrival]:  # fmt: skip
    """The requests that a service had, from the time of the first one on.

    A run keeps how many came in about each second: within it they are taken to have come independently of each other,
    so that bursts shorter than it are lost.

    Args:
        folder: of the run, for messages.
        events: of it.
        model: whose requests; None for the only one.
        samples: of a request, which a run does not keep.
        seed: of the times within a second.

    Raises:
        ConfigError: the run served nothing, or several models and none is named, or no such model, or no requests.
    """
    windows = [event for event in events if isinstance(event, ServedWindow)]
    names = sorted({each.model for each in windows})
    if not names:
        raise ConfigError(f"`{folder}` must be a run of `stoker serve`, got one that served nothing")
    chosen = names[0] if model is None and len(names) == 1 else model
    if chosen not in names:
        raise ConfigError(
            f"`--served` must name the model whose requests count, one of {', '.join(names)}, got "
            f"{'several models' if model is None else model}"
        )
    chance = random.Random(seed)
    found: list[Arrival] = []
    for window in windows:
        if window.model == chosen:
            count = sum(window.outcomes.get(outcome, 0) for outcome in _ARRIVED)
            begun_s = window.t_s - window.seconds
            times = sorted(begun_s + window.seconds * chance.random() for _ in range(count))
            found.extend(Arrival(at_s, samples) for at_s in times)
    return _from_first(folder, sorted(found), "serve longer, or give a FILE of times")


def _from_first(path: Path, found: Sequence[Arrival], advice: str) -> list[Arrival]:
    if len(found) < _LEAST or found[-1].at_s <= found[0].at_s:
        raise ConfigError(
            f"`{path}` must have {_LEAST} requests at different times at least, got {len(found)}; {advice}"
        )
    return [each._replace(at_s=each.at_s - found[0].at_s) for each in found]


def rate_of(arrivals: Sequence[Arrival]) -> float:
    """Requests a second from the first to the last."""
    return (len(arrivals) - 1) / (arrivals[-1].at_s - arrivals[0].at_s)


def at_rate(arrivals: Sequence[Arrival], rate: float) -> list[Arrival]:
    """The same requests closer together or farther apart.

    Args:
        arrivals: at different times.
        rate: requests a second that they come to.
    """
    factor = rate_of(arrivals) / rate
    return [each._replace(at_s=each.at_s * factor) for each in arrivals]


def _requests(
    path: Path, rows: Sequence[tuple[int, list[str]]], columns: dict[str, int], samples: int
) -> Iterator[Arrival]:  # fmt: skip
    before_s = 0.0
    for number, cells in rows:
        time, count = (_cell(cells, columns.get(name)) for name in (_TIME, _SAMPLES))
        if not _is_time(time):
            raise ConfigError(f"`{path}` line {number} must be a time of at least 0 in seconds, got {time[:40]!r}")
        if (at_s := float(time)) < before_s:
            raise ConfigError(
                f"`{path}` line {number} must not be before the one above it, at {before_s:g} s, got {at_s:g}; sort it"
            )
        if count and (not count.isdecimal() or int(count) < 1):
            raise ConfigError(f"`{path}` line {number} must have at least 1 sample, got {count[:40]!r}")
        before_s = at_s
        yield Arrival(at_s, int(count) if count else samples)


def _cell(cells: Sequence[str], at: int | None) -> str:
    return cells[at] if at is not None and at < len(cells) else ""


def _is_time(text: str) -> bool:
    """Whether it is a time that there can be."""
    return _parses(text) and 0.0 <= float(text) < math.inf


def _parses(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True

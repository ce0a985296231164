"""A trace of requests in a file: when they arrived, and how many samples they had."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from stoker.core.errors import ConfigError
from stoker.sim.serving import Arrival

_TIME, _SAMPLES = "at_s", "samples"
_LEAST = 2


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
        raise ConfigError(f"`--arrivals` must be a text file that can be read, got {path}: {error}") from None
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
    if len(found) < _LEAST or found[-1].at_s <= found[0].at_s:
        raise ConfigError(
            f"`{path}` must have {_LEAST} requests at different times at least, got {len(found)}; a line is a time in "
            "seconds, or TIME,SAMPLES"
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

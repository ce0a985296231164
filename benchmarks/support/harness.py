"""What all benchmarks share: arguments, rounds in alternation, ratios with their spread, one table, one JSON line.

A benchmark hands a :class:`Bar` and a function that measures to :func:`run`. Nothing here knows torch or stoker's feed.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

ROUNDS = 5
"""Rounds of everything that is compared, also with ``--quick``."""

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Options:
    """How large to run."""

    size: Literal["full", "quick", "tiny"]
    rounds: int
    data: Path | None = None
    """A folder of JPEG files to use instead of those found or made."""
    peers: bool = False
    """Also run other loaders that are installed, for comparison."""

    def pick(self, full: T, quick: T, tiny: T) -> T:
        """The value for this size."""
        return {"full": full, "quick": quick, "tiny": tiny}[self.size]


@dataclass(frozen=True)
class Bar:
    """A claim's name and what is measured, in one sentence."""

    name: str
    about: str
    headline: tuple[str, ...] = ()
    """Figures that the table of all bars shows."""


@dataclass(frozen=True)
class Spread:
    """Median, lowest and highest of several rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """The spread of some figures."""
        return cls(statistics.median(values), min(values), max(values))

    def show(self, digits: int) -> tuple[str, str]:
        """Median and range as text."""
        return number(self.median, digits), f"{number(self.low, digits)} - {number(self.high, digits)}"


def number(value: float, digits: int = 2) -> str:
    """A figure for people: thousands apart, ``digits`` after the point."""
    return f"{value:,.{digits}f}"


def ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Round by round, so that what slows the machine for a while slows both sides."""
    return [a / b for a, b in zip(above, below, strict=True)]


@dataclass(frozen=True)
class Claim:
    """One requirement and what was measured for it."""

    key: str
    """Name among the figures."""
    what: str
    spread: Spread
    bound: float
    at_least: bool
    digits: int = 2
    unit: str = ""

    @property
    def holds(self) -> bool:
        """Whether the median keeps the bound."""
        return self.spread.median >= self.bound if self.at_least else self.spread.median <= self.bound


@dataclass
class Report:
    """What a benchmark found."""

    figures: dict[str, float | int | str] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)
    tables: list[tuple[list[str], list[list[str]]]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    skipped: str = ""
    """Why nothing could be measured here; empty if it was."""

    def skip(self, reason: str) -> None:
        """Says that nothing can be measured here: the bar neither holds nor fails."""
        self.skipped = reason
        self.note(f"not measured: {reason}")
        self.figure("skipped", reason)

    def figure(self, key: str, value: float | int | str) -> None:
        """Keeps a figure for the JSON line."""
        self.figures[key] = round(value, 6) if isinstance(value, float) else value

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A table to print above the claims."""
        self.tables.append((list(head), [list(row) for row in rows]))

    def as_it_comes(self, row: Sequence[str]) -> list[str]:
        """The row of a table, printed at once as well: what is measured is kept if the rest does not end."""
        print("  " + "  ".join(row).rstrip(), flush=True)
        return list(row)

    def note(self, text: str) -> None:
        """A line to print above the tables, once."""
        if text not in self.notes:
            self.notes.append(text)

    def at_least(
        self, key: str, what: str, values: Sequence[float], bound: float, digits: int = 2, unit: str = ""
    ) -> None:
        """Claims that the median of ``values`` is at least ``bound``."""
        self._claim(Claim(key, what, Spread.of(values), bound, True, digits, unit))

    def at_most(
        self, key: str, what: str, values: Sequence[float], bound: float, digits: int = 2, unit: str = ""
    ) -> None:
        """Claims that the median of ``values`` is at most ``bound``."""
        self._claim(Claim(key, what, Spread.of(values), bound, False, digits, unit))

    def _claim(self, claim: Claim) -> None:
        self.claims.append(claim)
        self.figure(claim.key, claim.spread.median)
        if claim.spread.low != claim.spread.high:
            self.figure(claim.key + "_low", claim.spread.low)
            self.figure(claim.key + "_high", claim.spread.high)

    @property
    def holds(self) -> bool:
        """Whether all claims hold."""
        return all(claim.holds for claim in self.claims)


def alternate(rounds: int, runs: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Runs everything once a round, beginning with another one each time; the figures by name."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            found[name].append(runs[name]())
    return found


@contextlib.contextmanager
def no_collections() -> Iterator[None]:
    """Keeps Python's garbage collector out of a timed section, for all sides alike."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def parse(bar: Bar, arguments: Sequence[str] | None = None) -> tuple[Options, bool]:
    """Options of the command line and whether a JSON line is wanted."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{bar.name}", description=bar.about)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="fewer items; ends within 50 s on 2 cores")
    size.add_argument("--tiny", action="store_true", help="shows that the benchmark works; its figures mean nothing")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--rounds", type=int, help=f"rounds in alternation (default {ROUNDS}, tiny 1)")
    parser.add_argument("--data", type=Path, help="folder of JPEG files for the benchmarks with photographs")
    parser.add_argument("--peers", action="store_true", help="also run other installed loaders (feed_images)")
    found = parser.parse_args(arguments)
    rounds = found.rounds if found.rounds is not None else (1 if found.tiny else ROUNDS)
    if rounds < 1:
        parser.error(f"`--rounds` must be at least 1, got {rounds}")
    word: Literal["full", "quick", "tiny"] = "tiny" if found.tiny else "quick" if found.quick else "full"
    return Options(size=word, rounds=rounds, data=found.data, peers=found.peers), found.json


def run(bar: Bar, measure: Callable[[Options], Report], arguments: Sequence[str] | None = None) -> int:
    """Measures, prints, and returns the exit status: 0 also where a claim does not hold, which is a finding."""
    options, wants_json = parse(bar, arguments)
    print(_heading(bar, options), flush=True)
    report = measure(options)
    print(_body(report, options))
    if wants_json:
        holds = None if report.skipped else report.holds
        print(json.dumps({"bar": bar.name, "figures": report.figures, "holds": holds}), flush=True)
    return 0


def _heading(bar: Bar, options: Options) -> str:
    load = os.getloadavg()[0]
    cores = len(os.sched_getaffinity(0))
    how = {"full": "full size", "quick": "quick", "tiny": "tiny: the figures mean nothing"}[options.size]
    lines = [
        f"{bar.name} - {bar.about}",
        f"  {how}; {cores} cores, load {load:.1f} at the start, Python {sys.version.split()[0]}",
    ]
    if load > 0.7 * cores and options.size != "tiny":
        lines.append("  the machine is busy with something else: ratios hold better than absolute figures")
    return "\n".join(lines)


def _body(report: Report, options: Options) -> str:
    blocks = ["\n".join(f"  {note}" for note in report.notes)] if report.notes else []
    blocks += [layout(head, rows) for head, rows in report.tables]
    if report.claims:
        rows = [_claim_row(claim) for claim in report.claims]
        blocks.append(layout(["must show", "measured", "lowest - highest", "bound", ""], rows))
    return "\n\n".join(blocks)


def _claim_row(claim: Claim) -> list[str]:
    median, spread = claim.spread.show(claim.digits)
    if claim.spread.low == claim.spread.high:
        spread = ""
    sign = "≥" if claim.at_least else "≤"
    bound = f"{sign} {number(claim.bound, claim.digits)}{claim.unit}"
    return [claim.what, median + claim.unit, spread, bound, "holds" if claim.holds else "FAILS"]


def layout(head: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> str:
    """A table with a rule below its head: the columns ``left`` (and verdicts) to the left, figures to the right."""
    cells = [list(head), *(list(row) for row in rows)]
    widths = [max(len(row[n]) for row in cells) for n in range(len(head))]
    lines = ["  " + "  ".join(_cell(row[n], widths[n], n in left) for n in range(len(row))).rstrip() for row in cells]
    return "\n".join([lines[0], "  " + "-" * (len(max(lines, key=len)) - 2), *lines[1:]])


def _cell(text: str, width: int, left: bool) -> str:
    return text.ljust(width) if left or text in ("holds", "FAILS") else text.rjust(width)

"""Runs cases plain and again under another command, and compares the transcripts.

By hand: ``python -m tests.contract.compare [--against stoker|plain] [CASE or GROUP...]``; ``--against plain`` shows
that the cases themselves are deterministic.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tests.warm.programs import Program

from .registry import CASES, Case, by_process, process_of
from .transcript import BATCH, NOTE

ROOT = Path(__file__).resolve().parents[2]
SIDE_LIMIT_S = 200.0
"""For all cases of a process on one side, restarts included."""
BY_EXEC = "streams"
"""Cases whose process is started as people start programs; the others are forked from one that has torch loaded."""
MAX_RESTARTS = 3
"""A process that ends inside a case is started again with the cases after it, at most so often."""

Side = Literal["plain", "stoker", "elsewhere"]
Event = list[Any]


@dataclass
class GroupResult:
    """What one side gave for a list of cases."""

    transcripts: dict[str, list[Event]] = field(default_factory=dict[str, list[Event]])
    wall_s: dict[str, float] = field(default_factory=dict[str, float])
    failures: dict[str, str] = field(default_factory=dict[str, str])


class SideRun:
    """Cases of one side, running in a process of their own (a new one after each crash)."""

    def __init__(self, side: Side, names: Sequence[str], folder: Path) -> None:
        self._side: Side = side
        self._folder = folder
        self._left = list(names)
        self._starts = 0
        self._deadline_s = time.monotonic() + SIDE_LIMIT_S
        self._result = GroupResult()
        self._start()

    def _start(self) -> None:
        self._starts += 1
        base = self._folder / f"{self._side}-{self._starts}"
        self._out, self._err = base.with_suffix(".jsonl"), base.with_suffix(".stderr")
        program = ["-m", "tests.contract.run", "--out", str(self._out), *self._left]
        if self._side == "elsewhere":
            program = ["-m", "tests.contract.elsewhere", *program[2:]]
        if self._side != "plain":
            program = ["-m", "stoker", "run", "--quiet", "--run-dir", str(base), *program]
        with self._err.open("wb") as stderr:
            start = subprocess.Popen if process_of(CASES[self._left[0]].group) == BY_EXEC else Program
            self._process = start(
                [sys.executable, *program], cwd=ROOT, env=_environment(), stdout=subprocess.DEVNULL, stderr=stderr
            )

    def wait(self) -> GroupResult:
        """The result, once every case has run or its process could not be kept alive."""
        while True:
            try:
                ended = f"process ended with {self._process.wait(max(1.0, self._deadline_s - time.monotonic()))}"
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
                ended = f"process did not end in {SIDE_LIMIT_S} s"
            self._collect(ended)
            if not self._left:
                return self._result
            if self._starts > MAX_RESTARTS or time.monotonic() > self._deadline_s:
                self._result.failures |= dict.fromkeys(
                    self._left, "not run: too many cases ended or outlasted their process"
                )
                return self._result
            self._start()

    def close(self) -> None:
        """Ends the process, if a failure or Ctrl-C has left it running."""
        self._process.kill()
        self._process.wait()

    def _collect(self, ended: str) -> None:
        running = self._left[0]
        lines = self._out.read_text().splitlines() if self._out.exists() else []
        for line in map(json.loads, lines):
            if "start" in line:
                running = line["start"]
                continue
            self._result.transcripts[line["case"]] = line["events"]
            self._result.wall_s[line["case"]] = line["wall_s"]
        done = self._result.transcripts
        if running not in done:
            tail = "\n".join(self._err.read_text(errors="replace").splitlines()[-60:])
            self._result.failures[running] = f"{self._side}: {ended} in this case\n{tail}"
        self._left = [n for n in self._left if n not in done and n not in self._result.failures]


def _environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH")]))
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def run_both(names: Sequence[str], against: Side, folder: Path) -> tuple[GroupResult, GroupResult]:
    """The cases under plain python and under ``against``, side by side (the two processes share the cores)."""
    first, second = folder / "reference", folder / "candidate"
    first.mkdir()
    second.mkdir()
    plain, other = SideRun("plain", names, first), SideRun(against, names, second)
    try:
        return plain.wait(), other.wait()
    finally:
        plain.close()
        other.close()


def difference(case: Case, plain: GroupResult, other: GroupResult) -> str | None:
    """The first difference in words, or None when the two sides are equal as the case demands."""
    for result in (plain, other):
        if case.name in result.failures:
            return result.failures[case.name]
    for name, payload in plain.transcripts[case.name]:
        if name == "case failed":
            return f"`{case.name}` fails under torch's own loader: {payload}"
    expected = _comparable(case, plain.transcripts[case.name])
    actual = _comparable(case, other.transcripts[case.name])
    for number, (left, right) in enumerate(zip(expected, actual, strict=False)):
        if json.dumps(left) != json.dumps(right):  # as text, since True == 1
            where = _context(expected, number)
            return f"event {number} differs ({where})\n  torch : {_short(left)}\n  other : {_short(right)}"
    if len(expected) != len(actual):
        longer = max(expected, actual, key=len)
        extra = _short(longer[min(len(expected), len(actual))])
        return f"{len(expected)} events under torch, {len(actual)} in the other run; the first extra one: {extra}"
    return None


def notes(events: list[Event]) -> list[Any]:
    """Payloads of the events that are not compared."""
    return [payload for name, payload in events if name == NOTE]


def _comparable(case: Case, events: list[Event]) -> list[Event]:
    kept = [event for event in events if event[0] != NOTE]
    if case.equal == "streams":
        return [[name, None] if name == BATCH else [name, payload] for name, payload in kept]
    if case.equal == "unordered":
        batches = iter(sorted((e for e in kept if e[0] == BATCH), key=json.dumps))
        return [next(batches) if e[0] == BATCH else e for e in kept]
    return kept


def _context(events: list[Event], number: int) -> str:
    before = [name for name, _ in events[:number]]
    return f"after {before[-1]}, {before.count(BATCH)} batches" if before else "the first"


def _short(event: Event) -> str:
    text = f"{event[0]}: {json.dumps(event[1])}"
    return text if len(text) <= 1200 else text[:1200] + " ..."


def main() -> int:
    from . import cases as _cases  # noqa: F401 - fills the register; the pytest module does the same

    parser = argparse.ArgumentParser(prog="tests.contract.compare")
    parser.add_argument("--against", choices=("stoker", "plain"), default="stoker")
    parser.add_argument("--slowest", type=int, default=0, help="show so many of the slowest cases")
    parser.add_argument("names", nargs="*", help="cases or groups; all of them when left out")
    options = parser.parse_args()
    known = {name for c in CASES.values() for name in (c.name, c.group, process_of(c.group))}
    if unknown := set(options.names) - known:
        parser.error(f"no case, group or process is called {', '.join(sorted(unknown))}")
    failed, walls = 0, dict[str, float]()
    for process, members in by_process().items():
        wanted = set(options.names)
        chosen = [c for c in members if not wanted or {c.name, c.group, process} & wanted]
        if not chosen:
            continue
        with tempfile.TemporaryDirectory() as folder:
            plain, other = run_both([c.name for c in chosen], options.against, Path(folder))
        found = {c.name: difference(c, plain, other) for c in chosen}
        bad = {name: text for name, text in found.items() if text}
        failed += len(bad)
        walls |= plain.wall_s
        times = f"{sum(plain.wall_s.values()):.1f} s plain, {sum(other.wall_s.values()):.1f} s {options.against}"
        print(f"{process}: {len(chosen) - len(bad)} of {len(chosen)} equal, {times}", flush=True)
        for name, text in bad.items():
            print(f"- {name}: {text}")
    for name in sorted(walls, key=walls.__getitem__, reverse=True)[: options.slowest]:
        print(f"{walls[name]:7.2f} s  {CASES[name].group}/{name}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

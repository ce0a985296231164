"""The screen of `stoker demo`: one program under plain python and under `stoker run`.

Pure. Rates are seen from outside: what counts is when the program said that a step was done, on both sides alike.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from statistics import median

from stoker.core.units import format_count, format_seconds
from stoker.ui.figures import write_rate
from stoker.ui.report_text import Style
from stoker.ui.series import WorkerStep

ROUND_BATCHES = 10
ROUNDS = 5
"""Rates and their ratio are medians of the last rounds; the spread is that of the rounds."""
LEAST_BATCHES = (ROUNDS + 1) * ROUND_BATCHES
CHART_ROWS = 3
_LABEL_WIDTH = 12
_STEP = re.compile(r"step \d+ loss (\S+)")
_EIGHTHS = " ▁▂▃▄▅▆▇█"
_GREEN, _YELLOW, _RED = 32, 33, 31


@dataclass(kw_only=True)
class Course:
    """What one run of the program printed, and when."""

    started_s: float = 0.0
    """When it began to ask for batches."""
    facts: list[str] = field(default_factory=list[str])
    """Lines before the first step: the data, and what is emulated."""
    losses: list[str] = field(default_factory=list[str])
    times_s: list[float] = field(default_factory=list[float])
    """When each step was done."""

    def add(self, line: str, now_s: float) -> None:
        """A line that the program printed at that time."""
        if found := _STEP.fullmatch(line):
            self.losses.append(found[1])
            self.times_s.append(now_s)
        elif not self.losses:
            self.facts.append(line)
            self.started_s = now_s

    @property
    def took_s(self) -> float:
        """From the request for the first batch to the end of the last step."""
        return self.times_s[-1] - self.started_s

    def rounds(self) -> list[float]:
        """Time of a batch in each of the last rounds."""
        marks = self.times_s[-1 : -ROUNDS * ROUND_BATCHES - 2 : -ROUND_BATCHES][::-1]
        return [(last - first) / ROUND_BATCHES for first, last in pairwise(marks)]


@dataclass(frozen=True, kw_only=True)
class Demonstration:
    """Both runs of the program, and what the records of the second one say."""

    program: str
    """File name."""
    plain: Course
    served: Course
    declared_workers: int
    samples_per_batch: int
    workers: Sequence[WorkerStep]
    """How the number of data workers changed."""
    from_s: float
    """When the loader was first asked, on the clock of ``workers``."""
    cores: float
    load: float
    """Processes that wanted a core before the demonstration began."""
    took_s: float
    """Time of the whole demonstration."""
    report: str
    """File of the report, as typed from here."""
    path: str
    """Path of the program, as typed from here."""


@dataclass(frozen=True, kw_only=True)
class DemoGain:
    """How many times as fast the second run was."""

    end: float
    """Ratio of the medians of the last rounds."""
    least: float
    most: float
    whole: float
    """Ratio of the whole times, including the start and the search for the number of workers."""


def gain_of(plain: Course, served: Course) -> DemoGain:
    """The ratio of both runs; above 1 where stoker was faster."""
    before, after = plain.rounds(), served.rounds()
    ratios = [was / now for was, now in zip(before, after, strict=True)]
    return DemoGain(
        end=median(before) / median(after),
        least=min(ratios),
        most=max(ratios),
        whole=plain.took_s / served.took_s,
    )


def first_difference(plain: Course, served: Course) -> int:
    """Number of the first step whose losses differ, from 1; 0 where all are identical."""
    pairs = enumerate(zip_longest(plain.losses, served.losses), 1)
    return next((step for step, (left, right) in pairs if left != right), 0)


def render_demo(shown: Demonstration, style: Style) -> str:
    """The screen, ended by a newline."""
    blocks = [
        [*_heading(shown, style), *_program(shown, style)],
        _rates(shown, style),
        [*_ratio(shown, style), *_losses(shown, style)],
        _chart(shown, style),
        _files(shown, style),
    ]
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def _heading(shown: Demonstration, style: Style) -> list[str]:
    cores = f"{shown.cores:g} {'core' if shown.cores == 1 else 'cores'}"
    text = f"stoker demo · one program, run twice · {cores} · {format_seconds(shown.took_s)}"
    return [style.paint(style.cut(text, style.width), 1), style.paint(style.clean("─" * style.width), 90)]


def _program(shown: Demonstration, style: Style) -> list[str]:
    lines = _row("Program", f"{shown.program}: an ordinary PyTorch program, which does not import stoker", style)
    for fact in shown.plain.facts:
        label, _, text = fact.partition(": ")
        lines += _row(label.capitalize(), text, style)
    return lines


def _rates(shown: Demonstration, style: Style) -> list[str]:
    declared = format_count(shown.declared_workers, "worker")
    last = shown.workers[-1].workers if shown.workers else shown.declared_workers
    found = (
        format_count(last, "worker") if last == shown.declared_workers else f"{shown.declared_workers} → {last} workers"
    )
    sides = [
        ("Before", f"python {shown.program}", shown.plain, declared, _YELLOW),
        ("After", f"stoker run {shown.program}", shown.served, found, _GREEN),
    ]
    batch_s = [median(course.rounds()) for _, _, course, _, _ in sides]
    columns = style.width - _LABEL_WIDTH
    lines: list[str] = []
    for (label, command, _, workers, colour), own_s in zip(sides, batch_s, strict=True):
        rate = f"{write_rate(shown.samples_per_batch / own_s)} samples/s"
        text = f"{command:<20}{rate:>14}  {format_seconds(own_s):>7} a batch  {workers}"
        bar = ("█" if style.unicode else "#") * max(1, round(columns * min(batch_s) / own_s))
        lines += [*_row(label, text, style), " " * _LABEL_WIDTH + style.paint(bar, colour)]
    return lines


def _ratio(shown: Demonstration, style: Style) -> list[str]:
    gain = gain_of(shown.plain, shown.served)
    spread = f"{gain.least:.2f}x to {gain.most:.2f}x over {ROUNDS} rounds"
    took = f"{format_seconds(shown.plain.took_s)} → {format_seconds(shown.served.took_s)}"
    return [
        *_row("Ratio", f"{gain.end:.2f}x plain python at the end ({spread})", style, 1),
        *_row("", f"{gain.whole:.2f}x over all {len(shown.served.losses)} steps, from the start: {took}", style),
    ]


def _losses(shown: Demonstration, style: Style) -> list[str]:
    step = first_difference(shown.plain, shown.served)
    if not step:
        return _row("Losses", f"identical: all {len(shown.plain.losses)}, to the last digit", style, _GREEN)
    left, right = (
        course.losses[step - 1] if step <= len(course.losses) else "none" for course in (shown.plain, shown.served)
    )
    return _row("Losses", f"differ from step {step} on: {left} under plain python, {right} under stoker", style, _RED)


def _chart(shown: Demonstration, style: Style) -> list[str]:
    """Data workers over the time of the second run."""
    top = max((step.workers for step in shown.workers), default=0)
    if not top:
        return _row("Workers", "none: batches were made in the training process", style)
    margin = len(str(top)) + 2
    columns = style.width - _LABEL_WIDTH - margin
    times_s = [shown.from_s + (column + 0.5) / columns * shown.served.took_s for column in range(columns)]
    heights = [_workers_at(shown.workers, t_s) / top * CHART_ROWS for t_s in times_s]
    side, corner, floor = ("┤", "└", "─") if style.unicode else ("|", "+", "-")
    lines: list[str] = []
    for row in reversed(range(CHART_ROWS)):
        bars = "".join(_cell(height - row, style) for height in heights)
        label = "Workers" if row == CHART_ROWS - 1 else ""
        number = str(top) if row == CHART_ROWS - 1 else ""
        scale = f"{number:>{margin - 2}} {side}"
        lines.append(style.paint(f"{label:<{_LABEL_WIDTH}}", 1) + scale + style.paint(bars.rstrip(), _GREEN))
    end = f" {format_seconds(shown.served.took_s)}"
    lines.append(f"{'':<{_LABEL_WIDTH}}{'0':>{margin - 2}} {corner}{floor * (columns - len(end))}{end}")
    return lines


def _workers_at(steps: Sequence[WorkerStep], t_s: float) -> int:
    """Data workers at a time; before the first record those that the first one tells of."""
    return next((step.workers for step in reversed(steps) if step.t_s <= t_s), steps[0].workers)


def _cell(height: float, style: Style) -> str:
    """One character of a column that is so many rows high, counted from the character's own row."""
    if not style.unicode:
        return "#" if height >= 0.5 else " "
    return _EIGHTHS[max(0, min(8, round(8 * height)))]


def _files(shown: Demonstration, style: Style) -> list[str]:
    busy = f"the machine was busy (load {shown.load:.1f}): expect more on a quiet one"
    return [
        *(_row("Note", busy, style, _YELLOW) if shown.load > shown.cores else []),
        *_row("Report", shown.report, style),
        *_row("Source", shown.path, style),
        *_row("Next", "stoker run YOUR_PROGRAM.py", style, 36),
    ]


def _row(label: str, text: str, style: Style, code: int = 0) -> list[str]:
    """A labelled paragraph."""
    lines = style.wrap(text, style.width - _LABEL_WIDTH)
    painted = [style.paint(line, code) if code else line for line in lines]
    return [
        style.paint(f"{label if number == 0 else '':<{_LABEL_WIDTH}}", 1) + line for number, line in enumerate(painted)
    ]

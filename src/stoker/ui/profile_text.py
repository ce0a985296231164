"""A profile on the terminal: the verdict, the parts of a step measured and predicted, the evidence, what to do next."""

from __future__ import annotations

import shlex

from stoker.core.units import format_count, format_seconds
from stoker.records.parts import PARTS
from stoker.records.profile import Gain, Profile
from stoker.ui.figures import shorten_start, write_percent, write_rate
from stoker.ui.report_text import Style

LABEL_WIDTH = 15
_BAR_WIDTH = 24
NAMES = {
    "input": "input wait",
    "copy": "copy to device",
    "compute": "compute-bound",
    "memory": "memory-bound",
    "host": "host",
    "communication": "communication",
    "optimizer": "optimizer",
    "other": "other",
}
COLOURS = {
    "input": 33, "copy": 33, "compute": 32, "memory": 36, "host": 35, "communication": 34, "optimizer": 36, "other": 90,
}  # fmt: skip
VERDICT_COLOURS = {"high": 31, "moderate": 33, "": 32}
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def render_profile(profile: Profile, style: Style | None = None, *, folder: str = "") -> str:
    """The profile as one screen, lines ended by newlines.

    Args:
        profile: to show.
        style: what the terminal can show.
        folder: where its files are, as a person would type it.
    """
    style = style or Style()
    blocks = [_heading(profile, style), _verdict(profile, style), _parts(profile, style), _between(profile, style)]
    blocks += [_next(profile, style), _files(style, folder)]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _heading(profile: Profile, style: Style) -> list[str]:
    pace = f"{format_seconds(profile.seconds)} ({_range(profile.low, profile.high)})"
    device = profile.device_name or profile.device
    if profile.device == "cpu":
        device = f"{profile.cores:g} cores"
    if profile.gpus > 1:
        device = f"{profile.gpus} ranks, {device} each" if profile.device == "cpu" else f"{profile.gpus} x {device}"
    steps = format_count(profile.steps, profile.unit, {"batch": "batches"}.get(profile.unit, ""))
    facts = [f"{steps} of {pace}"]
    if profile.batch_size:
        facts.append(f"{write_rate(profile.batch_size * profile.gpus / profile.seconds)} samples/s")
    facts += [profile.precision, device]
    program = f"stoker profile · {shlex.join(profile.program) or 'python'}"
    return [
        style.paint(style.cut(program, style.width), 1),
        style.cut(" · ".join(facts), style.width),
        style.paint(style.clean("─" * style.width), 90),
    ]


def _verdict(profile: Profile, style: Style) -> list[str]:
    verdict = profile.verdict
    if verdict is None:
        return []
    kind = style.paint(verdict.kind, VERDICT_COLOURS[verdict.severity]) if style.color else verdict.kind
    lines = _wrapped(verdict.text, style, first=len(verdict.kind) + 2)
    return [f"{kind}  {lines[0]}", *(" " * LABEL_WIDTH + line for line in lines[1:])]


def _wrapped(text: str, style: Style, first: int = LABEL_WIDTH) -> list[str]:
    """Lines right of the labels; the first one begins further right where something is before it."""
    lines = style.wrap(text, style.width - LABEL_WIDTH, initial=" " * max(0, first - LABEL_WIDTH))
    return [lines[0].lstrip(), *lines[1:]]


def _labelled(label: str, text: str, style: Style) -> list[str]:
    lines = _wrapped(text, style)
    return [style.paint(f"{label:<{LABEL_WIDTH}}", 1) + lines[0], *(" " * LABEL_WIDTH + line for line in lines[1:])]


def _parts(profile: Profile, style: Style) -> list[str]:
    shown = _shown(profile)
    predicted = profile.predicted
    heading = f"{'':<{LABEL_WIDTH}}{'measured':>9}{'':>9}  {'':<{_BAR_WIDTH}}"
    if predicted is not None:
        heading += f"  {'predicted':>9}"
    lines = [style.paint(heading.rstrip(), 1)]
    largest = max(shown.values(), default=0.0) or 1.0
    for name, seconds in shown.items():
        share = seconds / profile.seconds
        bar = _bar(seconds / largest, style)
        line = f"{NAMES[name]:<{LABEL_WIDTH}}{format_seconds(seconds):>9}{write_percent(share):>9}  "
        line += style.paint(bar, COLOURS[name]) + " " * (_BAR_WIDTH - len(bar))
        if predicted is not None:
            expected = predicted.parts.get(name)
            told = f"{format_seconds(expected):>9}{write_percent(expected / predicted.seconds):>9}" if expected else ""
            line += "  " + (told or f"{'-':>9}")
        lines.append(line.rstrip())
    total = f"{'step':<{LABEL_WIDTH}}{format_seconds(profile.seconds):>9}{'':>9}  {'':<{_BAR_WIDTH}}"
    if predicted is not None:
        total += f"  {format_seconds(predicted.seconds):>9}"
    return [*lines, style.paint(total.rstrip(), 1)]


def _shown(profile: Profile) -> dict[str, float]:
    """The parts as rows: the input's two halves apart, those that took nothing left out unless predicted."""
    details = profile.details
    halves = {"input": details.wait_s, "copy": details.copy_s}
    rows = {name: halves.get(name, profile.parts.get(name, 0.0)) for name in PARTS}
    predicted = profile.predicted.parts if profile.predicted else {}
    always = ("input", "compute", "memory") if profile.sampled else ("input", "optimizer")
    return {name: value for name, value in rows.items() if value > 0 or name in always or predicted.get(name)}


def _bar(share: float, style: Style) -> str:
    if not style.unicode:
        return "#" * round(share * _BAR_WIDTH)
    eighths = round(share * _BAR_WIDTH * 8)
    return ("█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()


def _between(profile: Profile, style: Style) -> list[str]:
    lines: list[str] = []
    if profile.details.hidden_communication_s > 0:
        hidden = format_seconds(profile.details.hidden_communication_s)
        lines += _labelled("Overlap", f"{hidden} more communication overlaps with compute", style)
    if profile.residual is not None:
        lines += _labelled("Residual", profile.residual.text, style)
    if profile.predicted is not None:
        span = _range(profile.predicted.low, profile.predicted.high)
        told = f"{format_seconds(profile.predicted.seconds)} a step ({span}), {profile.predicted.tier}"
        lines += _labelled("Prediction", f"{told}: {profile.predicted.basis}", style)
    elif profile.unpredicted:
        lines += _labelled("Prediction", f"none: {profile.unpredicted}", style)
    for number, text in enumerate(profile.verdict.evidence if profile.verdict else []):
        lines += _labelled("" if number else "Evidence", text, style)
    for number, note in enumerate(profile.notes):
        lines += _labelled("" if number else "Note", note, style)
    return lines


def _next(profile: Profile, style: Style) -> list[str]:
    if profile.verdict is None:
        return []
    action = profile.verdict.action
    lines = _labelled("Next", action.text, style)
    # A command is meant for copying: it is never cut.
    lines.append(" " * LABEL_WIDTH + style.paint(style.clean(action.command), 36))
    if action.gain is not None:
        for number, text in enumerate(_gain(profile.seconds, action.gain)):
            lines += _labelled("" if number else "Predicted gain", text, style)
    elif action.no_gain:
        lines += _labelled("Predicted gain", f"none: {action.no_gain}", style)
    return lines


def _gain(now_s: float, gain: Gain) -> list[str]:
    texts = [
        f"{format_seconds(now_s)} -> {format_seconds(gain.seconds)} a step ({_range(gain.low, gain.high)}), "
        f"{1 / (1 - gain.saved_frac):.2f}x ({1 / (1 - gain.saved_frac_low):.2f}-{1 / (1 - gain.saved_frac_high):.2f}x)"
        if gain.saved_frac_high < 1
        else f"{format_seconds(now_s)} -> {format_seconds(gain.seconds)} a step"
    ]
    saved = f"{60 * gain.saved_frac:.0f} min of each hour"
    saved += f" ({60 * gain.saved_frac_low:.0f}-{60 * gain.saved_frac_high:.0f})"
    if gain.price_per_hour is not None and gain.saved_per_hour is not None:
        low, high = gain.saved_per_hour_low or 0.0, gain.saved_per_hour_high or 0.0
        saved += f", {gain.saved_per_hour:.2f} of each {gain.price_per_hour:.2f} spent ({low:.2f}-{high:.2f})"
    return [*texts, saved, gain.basis]


def _files(style: Style, folder: str) -> list[str]:
    if not folder:
        return []
    name = shorten_start(folder, max(20, style.width - LABEL_WIDTH - 14))
    return [style.paint(f"{'Files':<{LABEL_WIDTH}}", 1) + style.paint(style.clean(f"{name}/profile.json"), 90)]


def _range(low: float, high: float) -> str:
    """``38-42 ms``: one unit where both have it."""
    first, last = format_seconds(low), format_seconds(high)
    if first.split()[-1] == last.split()[-1] and " " in first:
        return f"{first.rsplit(' ', 1)[0]}-{last}"
    return f"{first} - {last}"

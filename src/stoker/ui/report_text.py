"""The report as one screen of text: at most 24 lines of 100 columns, readable without colour and without Unicode."""

from __future__ import annotations

import shlex
import textwrap
from dataclasses import dataclass

from stoker.core.units import format_count, format_seconds
from stoker.records.parts import REPORTED
from stoker.records.versus import describe
from stoker.ui.cache_text import write_cache_used
from stoker.ui.cuts import write_cut
from stoker.ui.figures import shorten, shorten_start, write_clock, write_count, write_percent, write_rate
from stoker.ui.loaders import LoaderSummary
from stoker.ui.summary import Summary, as_typed
from stoker.ui.windows import RecordedWindow, Split

LABEL_WIDTH = 12
MAX_LINES = 24
_LOADERS_SHOWN = 4
_LOADERS_LEAST = 3
_INCIDENTS_SHOWN = 3

SPLIT_COLOURS = (33, 36, 32, 90)
"""ANSI styles of a split's parts, in its order."""
_BAR = {True: "█▓▒░", False: "#=-."}


@dataclass(frozen=True, kw_only=True)
class Style:
    """What the terminal can show."""

    width: int = 100
    color: bool = False
    unicode: bool = True

    def paint(self, text: str, code: int) -> str:
        """The text in an ANSI style, where colour is wanted."""
        return f"\x1b[{code}m{text}\x1b[0m" if self.color and text else text

    def clean(self, text: str) -> str:
        """The text without what the terminal cannot show, or must not: names of files may hold control characters."""
        text = "".join(character if character.isprintable() else " " for character in text)
        if self.unicode:
            return text
        for fancy, plain in (("·", "|"), ("→", "->"), ("…", "..."), ("─", "-"), ("×", "x")):
            text = text.replace(fancy, plain)
        return text.encode("ascii", "replace").decode("ascii")

    def wrap(self, text: str, width: int, *, initial: str = "", indent: str = "") -> list[str]:
        """The text as the terminal can show it, in lines of at most ``width`` columns, at least one.

        Args:
            text: to be shown.
            width: columns of a line.
            initial: what the first line begins with.
            indent: what the others begin with.
        """
        # "%" stays on the line of its number.
        text = self.clean(text).replace(" %", "\u00a0%")
        lines = textwrap.wrap(text, width, initial_indent=initial, subsequent_indent=indent, break_on_hyphens=False)
        return [line.replace("\u00a0", " ") for line in lines or [""]]

    def cut(self, text: str, width: int) -> str:
        """The text as the terminal can show it, in at most ``width`` columns."""
        return shorten(self.clean(text), width, ellipsis="…" if self.unicode else "...")


def render_text(summary: Summary, style: Style | None = None) -> str:
    """The report, lines joined by newlines, the last one ended by one."""
    style = style or Style()
    main = summary.main_loader()
    blocks = [_heading(summary, style)]
    if main:
        blocks += [_throughput(main, style), _versus(main, style), _split_bars(main, style), _workers(main, style)]
    blocks += [_sizes(summary, style)]
    blocks += [_ranks(summary, style), _cache(summary, style), _incidents(summary, style), _verdict(summary, style)]
    used = sum(len(block) for block in blocks)
    cuts = _cuts(summary, style)
    # Dropped where incidents fill the screen: `stoker graph` shows it.
    if used + len(cuts) + _LOADERS_LEAST <= MAX_LINES:
        blocks.insert(-4, cuts)
        used += len(cuts)
    blocks.insert(-2, _loaders(summary, style, MAX_LINES - used))
    return "\n".join(_join([block for block in blocks if block])) + "\n"


def _join(blocks: list[list[str]]) -> list[str]:
    """The blocks' lines, with blank lines between them as far as the screen has room: the verdict's first."""
    spare = MAX_LINES - sum(len(block) for block in blocks)
    gaps = range(len(blocks) - 1, 1, -1)
    airy = set(list(gaps)[: max(0, spare)])
    lines: list[str] = []
    for number, block in enumerate(blocks):
        lines += ["", *block] if number in airy else block
    return lines


def _row(label: str, text: str, style: Style, code: int = 0) -> str:
    """A labelled line, cut to the width before it is painted."""
    body = style.cut(text, style.width - LABEL_WIDTH)
    return (style.paint(f"{label:<{LABEL_WIDTH}}", 1) + (style.paint(body, code) if code else body)).rstrip()


def _rows(label: str, text: str, style: Style, most: int = 2, code: int = 0, indent: str = "") -> list[str]:
    """A labelled paragraph of at most ``most`` lines."""
    wrapped = style.wrap(text, style.width - LABEL_WIDTH, initial=indent, indent=indent)
    if len(wrapped) > most:
        wrapped = [*wrapped[: most - 1], " ".join([wrapped[most - 1], *map(str.strip, wrapped[most:])])]
    return [_row(label if number == 0 else "", line, style, code) for number, line in enumerate(wrapped)]


def _heading(summary: Summary, style: Style) -> list[str]:
    outcome = summary.outcome or ("no end record" if summary.folder else "so far")
    ended = "finished" if outcome == "finished" else f"ended by {outcome}" if summary.outcome else outcome
    lasted = format_seconds(summary.duration_s)
    facts = [f"{lasted} so far" if ended == "so far" else f"{ended} after {lasted}", f"{summary.cores:g} cores"]
    facts.append(summary.accelerator or "no accelerator")
    if summary.world_size > 1:
        facts.append(f"rank {summary.rank} of {summary.world_size}")
    text = " · ".join(facts)
    program = shorten(shlex.join(summary.argv) or "python", max(20, style.width - len(text) - 13))
    title = style.cut(f"stoker · {program} · {text}", style.width)
    return [style.paint(title, 1), style.paint(style.clean("─" * style.width), 90)]


def _throughput(loader: LoaderSummary, style: Style) -> list[str]:
    if loader.overall is None:
        return [_row("Throughput", loader.end_missing, style)]
    total = format_count(loader.batches, "batch", "batches")
    total += f", {format_count(loader.samples, 'sample')}" if loader.samples else ""
    place = shorten_start(loader.site, 40)
    lines = [_row("Throughput", f"{write_throughput(loader.overall):<17} {total} of {place}", style)]
    start, end = loader.start, loader.end
    if end and not loader.changed:
        return [*lines, _row("  steady", f"{_pace(end)}   {write_steady(loader)}", style)]
    if start:
        batches = f"batches {start.first_batch + 1}-{start.first_batch + start.batches}"
        # "our transport", because this does not measure torch's own loader: the batches came through our slots.
        declared = f"{format_count(loader.declared_workers, 'declared worker')}, {batches}, our transport"
        place = declared if loader.declared_workers else f"in process, {batches}"
        lines.append(_row("  at start", f"{_pace(start)}   {place}", style))
    else:
        lines.append(_row("  at start", loader.start_missing, style))
    if end:
        gain = f", {loader.speedup:.2f}x the start" if loader.speedup else ""
        place = format_count(end.workers, "worker") if end.workers else "in process"
        measured = f"last {write_count(end.batches)} batches"
        if start and start.workers == end.workers and start.depth != end.depth:
            measured = f"{end.depth} batches ahead each"
        lines.append(_row("  at end", f"{_pace(end)}   {place}, {measured}{gain}", style))
    elif start or loader.end_missing != loader.start_missing:
        lines.append(_row("  at end", loader.end_missing, style))
    return lines


def write_steady(loader: LoaderSummary) -> str:
    """What a run without a change was steady with, and over which batches that was measured."""
    end = loader.end
    assert end is not None
    made = format_count(end.workers, "worker") if end.workers else "in process"
    return f"{made}{'' if loader.changes else ' throughout'}, last {write_count(end.batches)} batches"


def _versus(loader: LoaderSummary, style: Style) -> list[str]:
    """The comparison with torch's own workers, if requested."""
    if loader.versus:
        return _rows("Versus", describe(loader.versus), style)
    if loader.versus_missing:
        return _rows("Versus", f"not compared with plain python: {loader.versus_missing}", style)
    return []


def write_throughput(window: RecordedWindow) -> str:
    """Samples a second, or batches where their sizes are unknown."""
    if window.samples_per_s is None:
        return f"{write_rate(window.batches_per_s)} batches/s"
    return f"{write_rate(window.samples_per_s)} samples/s"


def _pace(window: RecordedWindow) -> str:
    return f"{write_throughput(window):<17} input wait {write_percent(window.split.input_wait_frac):>6}"


def _split_bars(loader: LoaderSummary, style: Style) -> list[str]:
    """The step split at the start and at the end, as bars over one legend."""
    windows = [("Step, start", loader.start), ("Step, end", loader.end)]
    if not loader.changed or not (loader.start or loader.end):
        windows = [("Step", loader.end or loader.overall)]
    lines: list[str] = []
    for label, window in windows:
        if window:
            shares = "  ".join(f"{write_percent(part)[:-2]:>4}" for part in window.split.parts())
            bar = draw_bar(window.split, max(8, min(40, style.width - LABEL_WIDTH - 26)), style)
            lines.append(style.paint(f"{label:<{LABEL_WIDTH}}", 1) + f"{bar}  {shares} %")
    if lines:
        lines.append(" " * LABEL_WIDTH + _legend(style))
    return lines


def draw_bar(split: Split, width: int, style: Style) -> str:
    """The split as ``width`` cells; glyphs differ as well as colours."""
    cells = _apportion(split.parts(), width)
    glyphs = _BAR[style.unicode]
    return "".join(
        style.paint(glyph * count, code) for glyph, count, code in zip(glyphs, cells, SPLIT_COLOURS, strict=True)
    )


def _apportion(parts: tuple[float, ...], width: int) -> list[int]:
    """Whole cells that sum to ``width``, by largest remainder."""
    exact = [part * width for part in parts]
    cells = [int(value) for value in exact]
    by_rest = sorted(range(len(parts)), key=lambda number: cells[number] - exact[number])
    for number in by_rest[: width - sum(cells)]:
        cells[number] += 1
    return cells


def _legend(style: Style) -> str:
    # Narrow lines show only the first word of each part's name.
    parts = [*REPORTED] if style.width >= 80 else [part.split()[0] for part in REPORTED]
    names = zip(_BAR[style.unicode], parts, SPLIT_COLOURS, strict=True)
    return "   ".join(f"{style.paint(glyph * 2, code)} {name}" for glyph, name, code in names)


def _workers(loader: LoaderSummary, style: Style) -> list[str]:
    if not loader.workers_max:
        return [_row("Workers", "none: batches are made in the training process", style)]
    steps = [loader.declared_workers, *(change.workers for change in loader.changes)]
    if len(steps) == 1:
        return _rows("Workers", f"{loader.workers_last} throughout{_elsewhere(loader)}", style)
    shown = steps if len(steps) <= 12 else [*steps[:6], *steps[-5:]]
    words = [str(number) for number in shown]
    if len(steps) > 12:
        words.insert(6, "…")
    last = loader.changes[-1]
    text = f"{' → '.join(words)} (since {write_clock(last.t_s)}): {loader.settled_reason}{_elsewhere(loader)}"
    return _rows("Workers", text, style)


def _elsewhere(loader: LoaderSummary) -> str:
    """What other machines did, as the end of a sentence."""
    if not loader.away_max:
        return ""
    made = f"{write_count(loader.items_away)} of {write_count(max(loader.batches, loader.items_away))} batches"
    return f"; up to {loader.away_max} of them on other machines, which made {made}"


def _cuts(summary: Summary, style: Style) -> list[str]:
    """What was moved out of the steps: the main loader's, or the first one's of which something was.

    Where nothing was worth moving there is nothing to say on one screen: `stoker graph` and the page have it.
    """
    found = [loader for loader in summary.loaders if loader.cut and loader.cut.outcome != "stayed"]
    shown = next((loader for loader in found if loader.loader == summary.main), found[0] if found else None)
    if shown is None or shown.cut is None:
        return []
    others = f" ({len(found) - 1} more)" if len(found) > 1 else ""
    # The reason is shortened in favour of the command, which reads the run's folder.
    text = style.cut(write_cut(shown.cut), 120 - len(others))
    command = f"; see `stoker graph {shlex.quote(as_typed(summary.folder))}`" if summary.folder else ""
    return _rows("Cut", f"{text}{command}{others}", style)


def _ranks(summary: Summary, style: Style) -> list[str]:
    rates = [rank.samples_per_s for rank in summary.ranks if rank.samples_per_s is not None]
    waits = [rank.input_wait_frac for rank in summary.ranks if rank.input_wait_frac is not None]
    if not rates or not waits:
        return []
    span = f"{write_percent(min(waits))} to {write_percent(max(waits))}"
    text = f"{write_rate(sum(rates))} samples/s over {len(summary.ranks)} ranks, input wait {span} (`--rank N` for one)"
    return [_row("All ranks", text, style)]


def _sizes(summary: Summary, style: Style) -> list[str]:
    """Why there are so many training workers, where stoker starts them."""
    return _rows("Ranks", summary.sizes.reason, style, most=3) if summary.sizes else []


def _cache(summary: Summary, style: Style) -> list[str]:
    return _rows("Cache", write_cache_used(summary.cache), style) if summary.cache else []


def _loaders(summary: Summary, style: Style, room: int) -> list[str]:
    """A loader's figures and why it is served so, as many as there is room for: the main one, then the busiest."""
    busiest = sorted(
        summary.loaders,
        key=lambda loader: (loader.loader == summary.main, loader.overall.active_s if loader.overall else 0.0),
        reverse=True,
    )
    shown = busiest[:_LOADERS_SHOWN]
    for most in (5, 2, 1):  # a reason is cut off only where there is no room for it
        blocks = _loader_blocks(shown, style, most)
        if sum(map(len, blocks)) + (len(busiest) > len(shown)) <= room:
            break
    while len(blocks) > 1 and sum(map(len, blocks)) + (len(busiest) > len(blocks)) > room:
        blocks.pop()
    lines = [line for block in blocks for line in block]
    if len(busiest) > len(blocks):
        lines.append(_row("", f"and {len(busiest) - len(blocks)} more (`--json` and `--html` list them all)", style))
    return lines


def _loader_blocks(loaders: list[LoaderSummary], style: Style, most: int) -> list[list[str]]:
    """The lines of each loader, a reason that was not given yet in at most ``most`` of them."""
    blocks: list[list[str]] = []
    said: set[str] = set()
    for loader in loaders:
        block = [_row("" if blocks else "Loaders", _loader_line(loader, style), style)]
        if loader.reason not in said:
            block += _rows("", loader.reason, style, most, 90, "  ")
        said.add(loader.reason)
        blocks.append(block)
    return blocks


def _loader_line(loader: LoaderSummary, style: Style) -> str:
    window = loader.end or loader.overall
    wait = f"wait {write_percent(window.split.input_wait_frac)}" if window else "not measured"
    site = shorten_start(loader.site, max(16, style.width - 80))
    words = [
        f"{loader.tier:<7}",
        site,
        loader.dataset,
        format_count(loader.batches, "batch", "batches"),
        write_workers(loader),
        wait,
    ]
    return " · ".join(words)


def write_workers(loader: LoaderSummary) -> str:
    """Who makes a loader's batches: ``2 workers``, ``2 → 6 workers``, ``in process``, ``torch``."""
    if loader.tier == "stock":
        return "torch"
    if not loader.workers_last:
        return "in process"
    if loader.declared_workers == loader.workers_last:
        return format_count(loader.workers_last, "worker")
    return f"{loader.declared_workers} → {format_count(loader.workers_last, 'worker')}"


def _incidents(summary: Summary, style: Style) -> list[str]:
    texts: list[str] = []
    for lost in summary.lost_workers[:_INCIDENTS_SHOWN]:
        items = f"{format_count(lost.released, 'item')} issued again, no sample lost"
        texts.append(f"{format_count(lost.count, 'worker')} lost: {lost.cause}; {items}")
    if len(summary.lost_workers) > _INCIDENTS_SHOWN:
        texts.append(f"and {len(summary.lost_workers) - _INCIDENTS_SHOWN} more causes of lost workers")
    if summary.quarantined:
        first = summary.quarantined[0]
        name = f"index {first.index}" + (f" ({first.path})" if first.path else "")
        done = {"skip": "skipped", "replace": "replaced"}.get(first.action, first.action)
        texts.append(f"{format_count(len(summary.quarantined), 'sample')} {done} for killing workers: {name}")
    texts += summary.caveats
    return [_row("Incidents" if number == 0 else "", text, style, 33) for number, text in enumerate(texts)]


def _verdict(summary: Summary, style: Style) -> list[str]:
    command = style.clean(summary.advice.command)
    return [
        *_rows("Limit now", summary.limit.text, style, 3),
        # A command is meant for copying: it is never cut.
        style.paint(f"{'Next':<{LABEL_WIDTH}}", 1) + style.paint(command, 36),
        _row("", f"  {summary.advice.why}", style, 90),
    ]

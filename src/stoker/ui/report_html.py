"""The report as one HTML page that needs nothing else: no script, no network, light and dark by the reader's system."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable
from html import escape

from stoker.core.units import format_bytes, format_count, format_seconds
from stoker.records.exchange import ExchangeRuns
from stoker.records.fitting import FitRuns
from stoker.records.parts import REPORTED
from stoker.records.runlog import Run
from stoker.ui.advice import Advice
from stoker.ui.cuts import headline_cut, latest_cuts, write_cut
from stoker.ui.exchange.averaging_plots import draw_averaging
from stoker.ui.exchange.averaging_text import averages_of, write_averaging
from stoker.ui.exchange.run_html import draw_exchanges
from stoker.ui.figures import shorten, write_clock, write_count, write_percent, write_rate
from stoker.ui.fitting.html import draw_fits
from stoker.ui.graph_svg import render_svg
from stoker.ui.html_page import (
    BarPart,
    draw_bar,
    draw_facts,
    draw_figure,
    draw_header,
    draw_list,
    draw_prose,
    draw_section,
    draw_table,
    draw_tiles,
    render_page,
)
from stoker.ui.loaders import LoaderSummary
from stoker.ui.report_plots import draw_loader, has_gaps
from stoker.ui.report_text import write_steady, write_workers
from stoker.ui.summary import Summary
from stoker.ui.versus_html import draw_versus
from stoker.ui.windows import RecordedWindow, Split

MAX_PLOTTED = 6
"""Loaders with plots; a program with more is better read as JSON."""
MAX_TITLE = 160
"""Longer command lines are cut in the heading; the facts at the end hold all of it."""
_LABELLED_FRAC = 0.15
"""A part of a bar narrower than this has no room for its figure."""


def render_html(run: Run, summary: Summary, exchanges: ExchangeRuns | None = None, fits: FitRuns | None = None) -> str:
    """The page, for one rank's records, their summary, the exchanges of the run, and what made it fit."""
    program = shlex.join(summary.argv) or summary.run_id
    body = "\n".join(part for part in _parts(run, summary, program, exchanges, fits) if part)
    return render_page(f"{program} · stoker report", body)


def _parts(
    run: Run, summary: Summary, program: str, exchanges: ExchangeRuns | None, fits: FitRuns | None
) -> Iterable[str]:
    main = summary.main_loader()
    yield _header(summary, program)
    yield _verdict(summary)
    for caveat in summary.caveats:
        yield f'<div class="card caveat">{escape(caveat)}</div>'
    if main:
        yield _tiles(main)
        yield draw_versus(summary)
        yield _splits(main)
        yield _plots(run, summary, main)
    yield _cuts(run, summary)
    yield _averaging(run)
    if exchanges is not None:
        yield draw_exchanges(exchanges)
    if fits is not None:
        yield draw_fits(fits)
    yield _ranks(summary)
    yield _loaders(summary)
    yield _incidents(summary)
    yield _facts(summary)


def _header(summary: Summary, program: str) -> str:
    started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(summary.started_unix_s))
    outcome = summary.outcome or "no end record"
    ended = f"ended by {outcome}" if summary.outcome not in ("", "finished") else outcome
    facts = [f"{ended} after {format_seconds(summary.duration_s)}", f"started {started}"]
    facts += [f"{summary.cores:g} cores", summary.accelerator or "no accelerator"]
    if summary.world_size > 1:
        facts.append(f"rank {summary.rank} of {summary.world_size}")
    return draw_header("stoker report", shorten(program, MAX_TITLE), " · ".join(facts))


def _verdict(summary: Summary) -> str:
    kind = summary.limit.kind.split("-")[0]
    advice = summary.advice
    if "--html" in advice.command:
        # The reader has this page open already.
        run = shlex.quote(summary.folder or summary.run_id)
        advice = Advice(command=f"stoker explain {run}", why="each loader, how it is served and why")
    return (
        f'<section class="card verdict {escape(kind)}"><div><p class="soft small">What limits the job now</p>'
        f'<p class="text">{escape(_capital(summary.limit.text))}</p></div>'
        f'<div><p class="soft small">Next useful command</p><code>{escape(advice.command)}</code>'
        f'<p class="soft small">{escape(advice.why)}</p></div></section>'
    )


def _tiles(loader: LoaderSummary) -> str:
    last = loader.end or loader.overall
    if last is None:
        return ""
    first = loader.start if loader.end and loader.changed else None
    unit = "samples/s" if last.samples_per_s is not None else "batches/s"
    basis = "mean of the run" if not loader.end else "" if loader.changed else f"steady: {_unchanged(loader)}"
    gain = f"{loader.speedup:.2f}x the start" if loader.speedup else basis
    before = f"{write_percent(first.split.input_wait_frac)} at the start" if first else basis
    began = f"{loader.declared_workers} declared" if loader.workers_last else "made in the training process"
    volume = f"{write_count(loader.samples)} samples" if loader.samples else f"{write_count(loader.batches)} batches"
    tiles = [
        ("Throughput at the end" if loader.end else "Throughput", write_rate(_pace(last)), unit, gain),
        ("Input wait at the end" if loader.end else "Input wait", *_value(last.split.input_wait_frac), before),
        ("Data workers at the end", str(loader.workers_last), "", began),
        ("Delivered", volume.split()[0], volume.split()[1], f"{format_bytes(loader.bytes)} of batches"),
    ]
    return draw_tiles(tiles)


def _value(frac: float) -> tuple[str, str]:
    number, _, unit = write_percent(frac).partition(" ")
    return number, unit


def _pace(window: RecordedWindow) -> float:
    return window.batches_per_s if window.samples_per_s is None else window.samples_per_s


def _splits(loader: LoaderSummary) -> str:
    """The step split at the start and at the end as two bars, with what they were measured on."""
    rows = [("Start", loader.start, loader.start_missing), ("End", loader.end, loader.end_missing)]
    if loader.end and not loader.changed:
        rows = [("Steady", loader.end, "")]
    elif not loader.start and not loader.end:
        rows = [("Whole run", loader.overall, ""), *((name, None, missing) for name, _, missing in rows)]
    cells = "".join(
        f'<div class="soft small">{escape(name)}</div>'
        + (_bar(window.split) if window else f'<div class="soft small">{escape(missing)}</div>')
        for name, window, missing in rows
    )
    measured = [(name, window.split) for name, window, _ in rows if window]
    return draw_section(
        "Where a step\u2019s time goes",
        f'<div class="card"><div class="bars">{cells}</div>{_split_table(measured)}'
        f'<p class="soft small">{escape(_basis(loader))}</p></div>',
    )


def _split_table(splits: list[tuple[str, Split]]) -> str:
    """The bars' figures, the smallest parts included; its head is the bars' legend."""
    head = "".join(f'<th class="n"><i class="{kind}"></i>{escape(name)}</th>' for kind, name in _part_names())
    rows = "".join(
        f"<tr><td>{escape(name)}</td>"
        + "".join(f'<td class="n">{write_percent(part)}</td>' for part in split.parts())
        + "</tr>"
        for name, split in splits
    )
    return f'<table class="split"><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table>'


def _basis(loader: LoaderSummary) -> str:
    """Explains the two windows, so that the start is not mistaken for a measurement of torch's own loader."""
    sentences: list[str] = [f"Loader {loader.site}."]
    if loader.end and not loader.changed:
        return f"{sentences[0]} Measured over: {write_steady(loader)}; {_unchanged(loader)}, so no gain is claimed."
    if loader.start:
        batches = f"batches {loader.start.first_batch + 1} to {loader.start.first_batch + loader.start.batches}"
        if loader.declared_workers:
            declared = format_count(loader.declared_workers, "worker")
            unmeasured = "" if loader.versus else "; torch's own loader was not measured"
            sentences.append(
                f"Start: {batches}, with exactly the {declared} that the program declares, already on stoker's "
                f"transport{unmeasured}."
            )
        else:
            sentences.append(f"Start: {batches}, in the training process, as the program declares.")
    if loader.end:
        workers = format_count(loader.end.workers, "worker") if loader.end.workers else "no workers"
        sentences.append(f"End: the last {write_count(loader.end.batches)} batches, with {workers}.")
        sentences.append(f"Changed in between: {', '.join(loader.changed)}.")
    return " ".join(sentences)


def _unchanged(loader: LoaderSummary) -> str:
    return "it ended as it began" if loader.changes else "nothing was changed"


def _bar(split: Split) -> str:
    return draw_bar(
        (
            BarPart(kind, frac, f"{name} {write_percent(frac)}", write_percent(frac))
            for (kind, name), frac in zip(_part_names(), split.parts(), strict=True)
        ),
        _LABELLED_FRAC,
    )


def _part_names() -> list[tuple[str, str]]:
    return [(f"s{number}", name) for number, name in enumerate(REPORTED)]


def _plots(run: Run, summary: Summary, main: LoaderSummary) -> str:
    others = [loader for loader in summary.loaders if loader is not main]
    sections = [_plots_of(run, main, summary.duration_s, shown=True, named=bool(others))]
    sections += [_plots_of(run, loader, summary.duration_s) for loader in others[: MAX_PLOTTED - 1]]
    if not any(sections):
        return '<p class="soft foot">The run is too short for plots over time.</p>'
    return "".join(sections)


def _plots_of(run: Run, loader: LoaderSummary, end_s: float, *, shown: bool = False, named: bool = True) -> str:
    figures = draw_loader(run, loader, end_s)
    if not figures:
        return ""
    grid = f'<div class="grid">{"".join(map(draw_figure, figures))}</div>'
    name = f" · {loader.site}" if named else ""
    gaps = "Gaps: the program was not iterating this loader. " if has_gaps(run, loader) else ""
    grid += f'<p class="soft small foot">{gaps}Point at a plot for its figures.</p>'
    if shown:
        return draw_section(f"Over time{name}", grid)
    return f'<details class="course"><summary>Over time{escape(name)}</summary>{grid}</details>'


def _cuts(run: Run, summary: Summary) -> str:
    """What was moved out of each loader's steps, with the picture to be folded out."""
    cards: list[str] = []
    for loader in summary.loaders[:MAX_PLOTTED]:
        cut = headline_cut(latest_cuts(run.events, loader.loader))
        if cut is None or loader.cut is None:
            continue
        picture = render_svg(cut, site=loader.site, inline=True)
        reason = f'<p class="soft small">{escape(_capital(cut.reason))}</p>' if cut.outcome == "moved" else ""
        cards.append(
            f'<div class="card"><p><code>{escape(loader.site)}</code>: {escape(write_cut(loader.cut))}</p>{reason}'
            f'<details><summary>picture</summary><div class="picture">{picture}</div></details></div>'
        )
    return draw_section("Moved out of the step", "".join(cards), kind="cuts") if cards else ""


def _averaging(run: Run) -> str:
    """How far ranks agreed that train apart, and how often they were averaged."""
    cards = [
        f"<p>{escape(f'{records[-1].model}, {records[-1].ranks} ranks: {write_averaging(records)}')}</p>"
        f'<div class="grid">{"".join(map(draw_figure, draw_averaging(records)))}</div>'
        for records in averages_of(run.events)
    ]
    return draw_section("Model averaging", "".join(cards)) if cards else ""


def _ranks(summary: Summary) -> str:
    why = f'<p class="soft">{escape(summary.sizes.reason)}</p>' if summary.sizes else ""
    if not summary.ranks:
        return draw_section("Ranks", f'<div class="card">{why}</div>') if why else ""
    rows = [
        [
            str(rank.rank),
            _optional(rank.samples_per_s, write_rate),
            _optional(rank.input_wait_frac, write_percent),
            str(rank.workers),
        ]
        for rank in summary.ranks
    ]
    table = draw_table(["rank", "samples/s", "input wait", "workers"], rows, numbers=(1, 2, 3))
    about = '<p class="soft small foot">The main loader of each rank, over the whole run.</p>'
    return draw_section("Ranks", f'<div class="card">{why}{table}{about}</div>')


def _optional(value: float | None, write: Callable[[float], str]) -> str:
    return "–" if value is None else write(value)


def _loaders(summary: Summary) -> str:
    if not summary.loaders:
        return ""
    bodies = "".join(map(_loader_rows, summary.loaders))
    names = ("batches", "samples/s", "input wait", "made by")
    head = "".join(f'<th class="n">{name}</th>' for name in names)
    return draw_section(
        "Loaders",
        '<div class="card"><table class="loaders"><thead><tr><th>loader</th><th>dataset</th>'
        f"<th>tier</th>{head}</tr></thead>{bodies}</table></div>",
    )


def _loader_rows(loader: LoaderSummary) -> str:
    window = loader.end or loader.overall
    rate = write_rate(window.samples_per_s) if window and window.samples_per_s is not None else "–"
    wait = write_percent(window.split.input_wait_frac) if window else "–"
    cells = [
        ("batches", write_count(loader.batches)),
        ("samples/s", rate),
        ("input wait", wait),
        ("made by", write_workers(loader)),
    ]
    numbers = "".join(f'<td class="n" data-name="{name}">{escape(text)}</td>' for name, text in cells)
    evidence = draw_list(loader.evidence)
    more = f"<details><summary>evidence</summary>{evidence}</details>" if evidence else ""
    return (
        f'<tbody><tr class="head"><td><code>{escape(loader.site)}</code></td><td>{escape(loader.dataset)}</td>'
        f'<td><span class="tier {escape(loader.tier)}">{escape(loader.tier)}</span></td>{numbers}</tr>'
        f'<tr><td class="why" colspan="7">{escape(_capital(loader.reason))}{more}</td></tr></tbody>'
    )


def _incidents(summary: Summary) -> str:
    rows: list[tuple[float, str, str]] = []
    for lost in summary.lost_workers:
        items = format_count(lost.released, "item")
        text = f"{format_count(lost.count, 'worker')} lost: {lost.cause}; {items} issued again, no sample lost"
        rows.append((lost.first_s, text, lost.stack))
    for sample in summary.quarantined:
        done = {"skip": "skipped", "replace": "replaced"}.get(sample.action, sample.action)
        place = f" ({sample.path})" if sample.path else ""
        rows.append((sample.t_s, f"Sample {done}: index {sample.index}{place}, seed {sample.seed}", ""))
    for notice in summary.notices:
        times = f" ({notice.count} times)" if notice.count > 1 else ""
        rows.append((notice.t_s, notice.text + times, ""))
    title = "Incidents and notices"
    if not rows:
        return draw_section(title, '<div class="card soft">None.</div>')
    body = "".join(
        f'<tr><td class="t">{write_clock(t_s)}</td><td>{draw_prose(_capital(text))}'
        + (f"<details><summary>stack</summary><pre>{escape(stack)}</pre></details>" if stack else "")
        + "</td></tr>"
        for t_s, text, stack in sorted(rows, key=lambda row: row[0])
    )
    return draw_section(
        title,
        '<div class="card"><table><thead><tr><th>time</th><th>what</th></tr>'
        f"</thead><tbody>{body}</tbody></table></div>",
    )


def _facts(summary: Summary) -> str:
    versions = " · ".join(f"{name} {version}" for name, version in summary.versions.items() if version)
    settings = ", ".join(f"{name} = {value}" for name, value in summary.config.items() if value is not None)
    facts = [
        ("program", shlex.join(summary.argv)),
        ("run", summary.run_id),
        ("folder", summary.folder),
        ("host", f"{summary.hostname}, {summary.cores:g} cores, {format_bytes(summary.memory_bytes)} memory"),
        ("versions", versions),
        ("settings", settings or "defaults"),
    ]
    listed = draw_facts((name, text) for name, text in facts if text)
    return draw_section("This run", f'<div class="card">{listed}</div>')


def _capital(text: str) -> str:
    """The text as a sentence begins; names of code keep their case."""
    return text[:1].upper() + text[1:] if text.split(" ")[0].rstrip(":,").isalpha() else text

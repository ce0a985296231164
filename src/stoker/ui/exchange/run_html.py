"""The exchanges of a run as a section of its page: the verdict, both steps, each layer with what it did not get."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from html import escape

from stoker.core.units import format_count, format_seconds
from stoker.records.exchange import ExchangedLayer, ExchangedStep, ExchangeReport, ExchangeRun, ExchangeRuns
from stoker.ui.exchange.plan_text import (
    METHOD_WORDS,
    STEP_HEAD,
    Refused,
    common_refusals,
    own_refusals,
    shown_layers,
    write_ends,
    write_size,
)
from stoker.ui.exchange.run_text import (
    FALLBACK_HEAD,
    fallback_rows,
    step_rows,
    write_exchange_run,
    write_notes,
    write_splits,
)
from stoker.ui.html_page import BarPart, draw_bar, draw_legend, draw_list, draw_section, draw_table, draw_tiles

_COMPUTED, _WORK, _EXPOSED, _MEASURED = "s2", "s1", "s0", "s3"
"""Colours: the program's computation, the plan's added work, the exchange that is waited for, what was measured."""
_SENT, _SPARED = "s0", "rest"
_LEGEND = ((_COMPUTED, "computation"), (_WORK, "added work"), (_EXPOSED, "exposed exchange"), (_MEASURED, "measured"))


def draw_exchanges(runs: ExchangeRuns) -> str:
    """A section with a part for each replicated module, and why others have none; nothing where there are neither."""
    parts = list(map(_drawn, runs.replicas))
    if runs.notes:
        parts.append(f'<div class="card">{draw_list(f"{note}." for note in runs.notes)}</div>')
    return draw_section("Exchange of gradients", "".join(parts), kind="exchange") if parts else ""


def _drawn(run: ExchangeRun) -> str:
    report = run.agreed.report
    facts = [run.name, format_count(run.ranks, "rank")]
    if report is not None:
        facts += [f"{report.backend} on {report.device}", f"plan {report.digest}"]
    good = "compute" if run.kept and run.agreed.methods else "plain"
    verdict = (
        f'<section class="card verdict {good}"><div><p class="soft small">{escape(" · ".join(facts))}</p>'
        f'<p class="text">{escape(write_exchange_run(run))}.</p></div></section>'
    )
    return (
        verdict
        + _tiles(run)
        + _card("The step", _steps(run))
        + _layers(run)
        + _fallbacks(run)
        + _splits(run)
        + _notes(run)
    )


def _splits(run: ExchangeRun) -> str:
    """What splits came to; nothing without any."""
    found = [f"{each}." for each in write_splits(run)]
    return _card("Layers whose weights were split", draw_list(found)) if found else ""


def _card(title: str, body: str, about: str = "") -> str:
    words = f' <span class="unit small">{escape(about)}</span>' if about else ""
    return f'<div class="card"><h3>{escape(title)}{words}</h3>{body}</div>'


def _tiles(run: ExchangeRun) -> str:
    """What the trial measured, seen first; nothing where there was no step with a plan."""
    if not (run.agreed.methods and run.planned_step_s and run.plain_step_s):
        return ""
    doubts = sum(sum(each.doubts.values()) for each in run.counts)
    steps = sum(each.steps for each in run.counts) + doubts
    checked = f"of {steps:,} checks of a layer" if steps else "no layer is gathered"
    return draw_tiles([
        ("Step with the plan", *_split(format_seconds(run.planned_step_s)),
         f"{format_seconds(run.plain_step_s)} as torch does it"),
        ("Sent by a rank in a step", *_split(write_size(run.planned_bytes)),
         f"{write_size(run.plain_bytes)} as torch does it"),
        ("Gain", f"{run.plain_step_s / run.planned_step_s:.2f}", "x", "measured: without over with the plan"),
        ("By all-reduce instead", f"{doubts:,}", "times", checked),
    ])  # fmt: skip


def _split(text: str) -> tuple[str, str]:
    number, _, unit = text.partition(" ")
    return number, unit


def _steps(run: ExchangeRun) -> str:
    """Bars of the step, without and with the plan, on one scale, above their figures."""
    report = run.agreed.report
    bars: list[tuple[str, list[tuple[str, float, str]]]] = []
    for name, planned, measured_s in (
        ("as torch does it", report.before if report else None, run.plain_step_s),
        ("with the plan", report.after if report and run.agreed.methods else None, run.planned_step_s),
    ):
        if planned is not None:
            bars.append((f"{name}, predicted", _parts(planned)))
        if measured_s:
            bars.append((f"{name}, measured", [(_MEASURED, measured_s, "the whole step")]))
    longest = max((sum(seconds for _, seconds, _ in parts) for _, parts in bars), default=0.0)
    cells = "".join(
        f'<div class="soft small">{escape(name)}</div>{draw_bar(_scaled(parts, longest))}' for name, parts in bars
    )
    legend = draw_legend(_LEGEND) if report is not None else ""
    table = draw_table(list(STEP_HEAD), step_rows(run), numbers=(1, 3, 4, 5, 6))
    return f'{legend}<div class="bars">{cells}</div>{table}'


def _parts(step: ExchangedStep) -> list[tuple[str, float, str]]:
    computed = max(0.0, step.step_s.likely - step.exposed_s - step.work_s)
    hidden = f", behind which {format_seconds(step.hidden_s)} of the exchange hide" if step.hidden_s else ""
    return [
        (_COMPUTED, computed, f"computation{hidden}"),
        (_WORK, step.work_s, "work that the plan adds"),
        (_EXPOSED, step.exposed_s, "exchange that the step waits for"),
    ]


def _scaled(parts: Sequence[tuple[str, float, str]], longest: float) -> Iterator[BarPart]:
    for kind, seconds, what in parts:
        text = format_seconds(seconds)
        yield BarPart(kind=kind, frac=seconds / longest, title=f"{what}: {text}", text=text)
    rest = longest - sum(seconds for _, seconds, _ in parts)
    yield BarPart(kind="rest", frac=rest / longest, title="", text="")


def _layers(run: ExchangeRun) -> str:
    """Each layer with what it sends, as a bar inside that of the all-reduce, and the methods that it did not get."""
    report = run.agreed.report
    if report is None:
        rows = [[METHOD_WORDS[each.method], f"{each.rows:,}" if each.rows else "", each.module]
                for each in run.agreed.methods]  # fmt: skip
        if not rows:
            return ""
        return _card("Methods that the program gave", draw_table(["method", "rows", "layer"], rows, numbers=(1,)))
    shown = shown_layers(report.layers)
    common = common_refusals(shown)
    widest = max((_summed_bytes(report, layer) for layer in shown), default=0.0) or 1.0
    bodies = "".join(_layer(report, layer, common, widest) for layer in shown)
    head = "".join(
        f"<th{kind}>{name}</th>" for kind, name in (
            ("", "layer"), ("", "shape"), (" class=n", "rows"), ("", "method"), (" class=n", "bytes"),
            (" class=n", "seconds"), ("", "from … to"), ("", "sent, of what an all-reduce sends"),
        )
    )  # fmt: skip
    left = len(report.layers) - len(shown)
    less = sum(each.bytes for each in report.layers) - sum(each.bytes for each in shown)
    more = f"<p class='soft small'>And {format_count(left, 'layer')} that send less: {write_size(less)}.</p>"
    about = "of one rank in a step, predicted" + ("" if run.kept or run.gain is None else "; given up")
    every = f"<p class='soft small'>All layers: {escape(_joined(common))}.</p>" if common else ""
    table = f'<table class="layers"><thead><tr>{head}</tr></thead>{bodies}</table>'
    return _card("Layers", table + (more if left else "") + every, about)


def _layer(report: ExchangeReport, layer: ExchangedLayer, common: Collection[Refused], widest: float) -> str:
    whole = max(_summed_bytes(report, layer), layer.bytes)
    bar = draw_bar([
        BarPart(_SENT, layer.bytes / widest, f"sent: {write_size(layer.bytes)}", ""),
        BarPart(_SPARED, (whole - layer.bytes) / widest, f"an all-reduce sends {write_size(whole)}", ""),
        BarPart("none", max(0.0, 1 - whole / widest), "", ""),
    ])  # fmt: skip
    cells = "".join(
        f"<td{' class=n' if place in (2, 4, 5) else ''}>{escape(text)}</td>" for place, text in enumerate((
            layer.module or "(outside of modules)", " x ".join(map(str, layer.shape)),
            f"{layer.rows:,}" if layer.rows else "", METHOD_WORDS[layer.method], write_size(layer.bytes),
            format_seconds(layer.seconds.likely), write_ends(layer.seconds),
        ))
    )  # fmt: skip
    refused = list(own_refusals(layer, common))
    why = f'<tr><td class="why" colspan="8">Not taken: {escape("; ".join(refused))}.</td></tr>' if refused else ""
    return f'<tbody><tr>{cells}<td class="bytes">{bar}</td></tr>{why}</tbody>'


def _summed_bytes(report: ExchangeReport, layer: ExchangedLayer) -> float:
    """What an all-reduce of the layer sends. Source: Thakur et al., IJHPCA 2005: 2 (P - 1)/P of the gradient."""
    return 2 * (report.ranks - 1) / report.ranks * layer.gradient_bytes


def _joined(common: Collection[Refused]) -> str:
    return "; ".join(f"{METHOD_WORDS[method]}: {reason}" for method, reason in common)


def _fallbacks(run: ExchangeRun) -> str:
    if not run.counts:
        return ""
    table = draw_table(list(FALLBACK_HEAD), fallback_rows(run), numbers=(0, 1))
    return _card("Layers that were gathered", table, "steps by their method, and by all-reduce instead")


def _notes(run: ExchangeRun) -> str:
    listed = draw_list(write_notes(run), "soft small")
    return f'<div class="card">{listed}</div>' if listed else ""

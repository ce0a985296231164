"""The comparison with plain python on the report's page: what it found for each loader, pair by pair."""

from __future__ import annotations

from html import escape

from stoker.records.versus import Comparison, Pair, Round, describe
from stoker.ui.figures import write_rate
from stoker.ui.html_page import draw_section, draw_table
from stoker.ui.loaders import LoaderSummary
from stoker.ui.summary import Summary


def draw_versus(summary: Summary) -> str:
    """The section; empty if no comparison was requested."""
    cards = [_card(loader) for loader in summary.loaders if loader.versus or loader.versus_missing]
    return draw_section("Against plain python", "".join(cards)) if cards else ""


def _card(loader: LoaderSummary) -> str:
    found = describe(loader.versus) if loader.versus else f"not compared: {loader.versus_missing}"
    rounds = _rounds(loader.versus) if loader.versus else ""
    return f'<div class="card"><p><code>{escape(loader.site)}</code>: {escape(found)}</p>{rounds}</div>'


def _rounds(found: Comparison) -> str:
    samples = found.ours.samples_per_s is not None and found.plain.samples_per_s is not None
    unit = "samples/s" if samples else "batches/s"
    head = ["pair", f"ours, {unit}", "our workers", f"torch's, {unit}", "torch's workers", "ratio"]
    rows = [_row(number, pair, samples=samples) for number, pair in enumerate(found.rounds, 1)]
    about = (
        f"Torch's own loader and ours took turns of {found.round_batches} batches. The first batches of each turn, "
        "which fill its queue, and the last ones, behind which nothing is made, are not counted; nor is a pair to warm "
        "up."
    )
    return draw_table(head, rows, numbers=(0, 1, 2, 3, 4, 5)) + f'<p class="soft small foot">{about}</p>'


def _row(number: int, pair: Pair, *, samples: bool) -> list[str]:
    ratio = f"{pair.ratio:.2f}x" if pair.counts else "too short"
    ours, plain = _cells(pair.ours, samples=samples), _cells(pair.plain, samples=samples)
    return [str(number), *ours, *plain, ratio]


def _cells(part: Round, *, samples: bool) -> list[str]:
    rate = (part.samples if samples else part.batches) / part.seconds if part.seconds else 0.0
    first, last = part.workers_from, part.workers_to
    return [write_rate(rate) if rate else "–", str(last) if first == last else f"{first} → {last}"]

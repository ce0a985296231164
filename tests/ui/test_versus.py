"""The comparison with plain python in reports: its line, its table, and why there is none."""

from __future__ import annotations

from stoker.records.events import AnyEvent, ComparisonEnded, PairCompared, RunEnded
from stoker.records.runlog import Run
from stoker.records.versus import Pair, Round
from stoker.ui.report_html import render_html
from stoker.ui.report_text import render_text
from stoker.ui.summary import Summary, summarise
from tests.ui.timeline import make_header, opened

RESULT = "Versus      0.93x plain python (0.93x to 0.93x, 5 pairs of rounds of 16 batches)"


def pair(number: int) -> PairCompared:
    ours = Round(workers_from=2, workers_to=4, batches=8, samples=256, seconds=1.0)
    plain = Round(workers_from=2, workers_to=2, batches=12, samples=384, seconds=0.93 * 1.5)
    return PairCompared(t_s=1.0 * number, loader=0, pair=Pair(round_batches=16, ours=ours, plain=plain))


def run_with(*found: AnyEvent, asked: int | None = 200) -> tuple[Run, Summary]:
    ended = RunEnded(t_s=9.0, outcome="finished")
    run = Run(header=make_header(config={"versus_plain": asked}), events=[opened(), *found, ended])
    return run, summarise(run)


def test_the_line_states_ratio_and_spread_also_where_we_are_slower() -> None:
    run, summary = run_with(*map(pair, range(5)), ComparisonEnded(t_s=8.0, loader=0))
    assert RESULT in render_text(summary)
    page = render_html(run, summary)
    assert "Against plain python" in page
    assert page.count("0.93x</td>") == 5
    assert "2 → 4" in page


def test_why_there_is_none_is_said() -> None:
    _, short = run_with(pair(0))
    assert "not compared with plain python: it takes 5 pairs of rounds, and the program" in render_text(short)
    run, refused = run_with(ComparisonEnded(t_s=1.0, loader=0, reason="its dataset is a stream"))
    assert "Versus      not compared with plain python: its dataset is a stream" in render_text(refused)
    assert "not compared: its dataset is a stream" in render_html(run, refused)


def test_nothing_is_said_where_nobody_asked() -> None:
    run, summary = run_with(asked=None)
    assert "Versus" not in render_text(summary)
    assert "plain python" not in render_html(run, summary)

"""Model averaging as people see it."""

from __future__ import annotations

import itertools
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from stoker.cli.report import main
from stoker.records.events import ModelAveraged
from stoker.ui.exchange.averaging_plots import draw_averaging
from stoker.ui.exchange.averaging_text import DIFFERS, render_averaging, spans_of
from stoker.ui.report_text import Style
from tests.ui.timeline import make_header


def record(step: int, since: int, **given: object) -> ModelAveraged:
    facts = {
        "t_s": 0.1 * step, "model": "Sequential 0", "ranks": 8, "step": step, "steps_since": since, "period": since,
        "agreement": 0.5, "compute_s": 0.01, "exchange_s": 0.03, "bytes": 4096, "reason": "period",
    }  # fmt: skip
    return ModelAveraged(**{**facts, **given})  # type: ignore[arg-type]


COURSE = [record(step, 1, reason="warm-up", agreement=0.9) for step in range(1, 13)] + [
    record(step, 4, agreement=None if step == 24 else 0.25) for step in range(16, 49, 4)
]


def test_it_says_that_losses_differ_and_shows_the_course() -> None:
    text = render_averaging(COURSE, Style(width=100))
    assert DIFFERS in text.replace("\n", " ")
    assert "21 averages in 48 steps (12 in the warm-up, 9 by period), the last period 4 steps" in text.replace(
        "\n", " "
    )
    assert "0.12 where their changes are unrelated" in text.replace("\n", " ")
    rows = [line.split() for line in text.splitlines() if "=" in line]
    assert rows[0] == ["1-4", "4", "1.0", "75", "%", "0.90", "=" * 22]
    assert rows[-1] == ["45-48", "1", "4.0", "43", "%", "0.25", "=" * 6]
    assert render_averaging([]) == ""


def test_spans_cover_all_averages_once() -> None:
    for most in (1, 5, 12, 200):
        spans = spans_of(COURSE, most)
        assert sum(span.averages for span in spans) == len(COURSE)
        assert len(spans) <= most
        assert all(a.last < b.first for a, b in itertools.pairwise(spans))


def test_plots_are_drawings() -> None:
    figures = draw_averaging(COURSE)
    assert [figure.title for figure in figures] == ["Agreement", "Period"]
    for figure in figures:
        assert ElementTree.fromstring(figure.drawing).tag == "svg"
    assert draw_averaging(COURSE[:1]) == []


def test_a_report_shows_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.json").write_bytes(msgspec.json.encode(make_header()))
    (tmp_path / "events.jsonl").write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in COURSE))
    assert main([str(tmp_path)]) == 0
    assert "Model averaging" in capsys.readouterr().out
    assert main([str(tmp_path), "--html", "-"]) == 0
    page = capsys.readouterr().out
    assert DIFFERS in page
    assert "Steps between averages over the steps" in page


@pytest.mark.parametrize("width", [40, 80])
def test_lines_fit_the_terminal(width: int) -> None:
    text = render_averaging(COURSE, Style(width=width, unicode=False))
    assert all(len(line) <= max(width, 66) for line in text.splitlines())
    assert text.isascii()

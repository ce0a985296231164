"""The records of a service as line, text and page: figures add up, and empty spans say so."""

from __future__ import annotations

import pytest

from stoker.records.events import RunHeader, ServedWindow, VersionStarted
from stoker.records.runlog import Run
from stoker.ui.report_text import Style
from stoker.ui.serving.figures import served_models
from stoker.ui.serving.html import render_served_html
from stoker.ui.serving.line import ServedLine
from stoker.ui.serving.text import render_served

PLAIN = Style(color=False)


def window(second: int, *, answered: int = 100, refused: int = 0, p99_s: float | None = 0.004) -> ServedWindow:
    return ServedWindow(
        t_s=float(second), model="digits", version="1", seconds=1.0,
        outcomes={"answered": answered, "refused": refused} if answered else {},
        p50_s=0.001 if p99_s else None, p99_s=p99_s, batch=4.0 if p99_s else None, waiting=3, engines=2,
        retries=1 if second == 5 else 0,
    )  # fmt: skip


STARTED = VersionStarted(
    t_s=0.0, model="digits", version="1", source="m.onnx", platform="onnxruntime", costs=[(1, 1e-4), (32, 4e-4)]
)
RUN = Run(
    header=RunHeader(
        run_id="r", started_unix_s=0.0, argv=["stoker", "serve", "run", "<m>"], cwd="/", python="", stoker="", torch="",
        numpy="", hostname="h", cores=2.0, memory_bytes=0, accelerator="",
    ),
    events=[STARTED, *(window(second, refused=50 * (second > 20)) for second in range(1, 31)), window(31, p99_s=0.5)],
)  # fmt: skip


def test_figures_add_up() -> None:
    (found,) = served_models(RUN.events)
    assert found.outcomes == {"answered": 3100, "refused": 500}
    assert found.retries == 1
    assert found.p50_s == pytest.approx(0.001)
    assert found.p99_s == 0.5
    assert sum(point.answers_per_s * (point.to_s - point.from_s) for point in found.points) == 3100


def test_a_long_run_is_thinned() -> None:
    (found,) = served_models([STARTED, *(window(second) for second in range(1, 5001))])
    assert len(found.points) <= 240
    assert all(point.answers_per_s == 100 for point in found.points)


def test_a_run_that_served_nothing_has_no_models() -> None:
    assert served_models([]) == []


def test_text_and_page() -> None:
    models = served_models(RUN.events)
    text = render_served(models, PLAIN)
    for words in ("stoker serve · digits", "3,600 requests", "500 refused", "1 request lost an engine", "onnxruntime"):
        assert words in text
    page = render_served_html(RUN, models)
    assert "Latency over time" in page
    assert "&lt;m&gt;" in page
    assert "<m>" not in page
    assert "No request came" in render_served(served_models([STARTED]), PLAIN)


def test_the_line_says_what_happened() -> None:
    line = ServedLine(PLAIN)
    assert line.render(window(1, refused=7)) == (
        "digits · 100 answers/s · p50 1.00 ms, p99 4.00 ms · batch 4.0 · queue 3 · shed 7.00/s · version 1"
    )
    assert line.render(window(1, answered=0, p99_s=None)) == "digits · 0.00 answers/s · queue 3 · version 1"
    assert len(ServedLine(Style(width=30)).render(window(1))) <= 30

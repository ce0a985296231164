"""The records of a service as line, text and page: figures add up, and empty spans say so."""

from __future__ import annotations

import msgspec
import pytest

from stoker.records.events import RunHeader, ServedWindow, VersionStarted
from stoker.records.runlog import Run
from stoker.serve.figures import FigureWindows, ModelFigures
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


def uneven(*, with_times: bool) -> list[ServedWindow]:
    """Thousands of answers in 0.8 ms, and one second with 13 in 347 ms."""
    counts = ((2583, 0.00083), (2273, 0.00091), (13, 0.347))
    return [
        msgspec.structs.replace(
            window(second, answered=count), p50_s=p50_s, p99_s=2 * p50_s,
            latencies=[(p50_s, count - count // 50), (2 * p50_s, count // 50)] if with_times else None,
        )
        for second, (count, p50_s) in enumerate(counts, 1)
    ]  # fmt: skip


@pytest.mark.parametrize("with_times", [True, False])
def test_a_few_slow_answers_do_not_move_the_median(with_times: bool) -> None:
    (found,) = served_models([STARTED, *uneven(with_times=with_times) * 12])
    assert found.p50_s == 0.00083
    assert [row.p50_s for row in found.rows] == [0.00083] * 12
    assert {row.p99_s for row in found.rows} == ({0.00182} if with_times else {0.694})
    text = " ".join(render_served([found], PLAIN).split())
    assert "830 us in the middle" in text
    assert ("99 % of them at most 1.82 ms" in text) == with_times
    assert ("worst p99" in text) != with_times


def test_batches_count_not_seconds() -> None:
    """A second with 1,000 answers in batches of 10, and one with a lone request."""
    pair = [
        msgspec.structs.replace(window(at, answered=count), batch=batch)
        for at, count, batch in ((1, 1000, 10.0), (2, 1, 1.0))
    ]
    (found,) = served_models([STARTED, *pair * 12])
    assert [row.batch for row in found.rows] == pytest.approx([1001 / 101] * len(found.rows))


def test_each_second_says_how_long_its_answers_took() -> None:
    figures = ModelFigures()
    windows = FigureWindows(figures, 0.0)
    for seconds in (0.001, 0.001, 0.3):
        figures.answered(seconds)
    found = windows.next(1.0).latencies
    assert [count for _, count in found] == [2, 1]
    assert all(own <= edge <= 1.06 * own for own, (edge, _) in zip((0.001, 0.3), found, strict=True))
    assert windows.next(2.0).latencies == []


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

"""The page, its plots, and the command that shows them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.cli.main import main as stoker
from stoker.records.events import SizesChosen
from stoker.records.runlog import Run
from stoker.ui.report_html import render_html
from stoker.ui.summary import summarise
from stoker.ui.svg import Plot, clock_ticks, count_ticks, nice_ticks
from tests.ui.timeline import RUNS, growth_run, make_header, opened, write_run

VOID = {"meta", "br"}


class Page(HTMLParser):
    """Checks that elements nest, and collects what a browser would fetch or show."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.texts: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "srcset")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def parse(page: str) -> Page:
    parser = Page()
    parser.feed(page)
    parser.close()
    assert parser.open == []
    return parser


@pytest.mark.parametrize("name", RUNS)
def test_page_is_whole_and_fetches_nothing(name: str) -> None:
    run = RUNS[name]()
    page = render_html(run, summarise(run))
    parsed = parse(page)
    assert parsed.fetched == []
    assert not parsed.tags & {"script", "link", "img", "iframe"}
    assert "http" not in page.replace("http-equiv", "")
    assert len(page) < 300_000


def test_page_shows_the_course() -> None:
    run = growth_run()
    parsed = parse(render_html(run, summarise(run)))
    text = " ".join(parsed.texts)
    for words in ("Throughput", "Data workers", "Queue", "worker lost", "2 → 6 workers", "torch's own loader was not"):
        assert words in text
    assert "svg" in parsed.tags


def test_page_says_why_there_are_so_many_ranks() -> None:
    run = growth_run()
    assert "Ranks" not in render_html(run, summarise(run))
    run.events.append(SizesChosen(t_s=1.0, workers=2, reason="two are better than <one>"))
    assert "two are better than &lt;one&gt;" in render_html(run, summarise(run))


def test_users_words_cannot_become_markup() -> None:
    evil = "<script>alert('x')</script>&\""
    run = growth_run(epochs=1)
    events = [opened(0, site=evil, dataset=evil, reason=evil, evidence=[evil], tier=evil), *run.events[1:]]
    run = Run(header=make_header(argv=[evil], hostname=evil, config={evil: evil}), events=events)
    parsed = parse(render_html(run, summarise(run)))
    assert "script" not in parsed.tags
    assert evil in " ".join(parsed.texts)


@given(st.floats(1e-6, 1e12))
def test_ticks_are_few_round_and_reach_the_top(top: float) -> None:
    ticks = nice_ticks(top)
    assert ticks[0] == 0
    assert ticks[-1] >= top * (1 - 1e-9)
    assert 2 <= len(ticks) <= 7


@given(st.integers(0, 10_000))
def test_ticks_of_counts_are_whole(top: int) -> None:
    ticks = count_ticks(top)
    assert all(tick == int(tick) for tick in ticks)
    assert ticks[-1] >= max(1, top)
    assert len(ticks) <= 7


@given(st.floats(0, 1e7))
def test_ticks_of_time_stay_within_the_run(end_s: float) -> None:
    ticks = clock_ticks(end_s)
    assert ticks[0] == 0
    assert ticks[-1] <= end_s
    assert len(ticks) <= 7


def test_plot_of_nothing_and_of_one_point_is_a_plot() -> None:
    plot = Plot(title="t <", begin_s=0, end_s=0, ticks=nice_ticks(0), write_value=str, write_time=str)
    plot.steps([], "s1")
    plot.line([(0.0, 1.0)], "s1")
    plot.area([(0.0, float(10**9))], "s1")
    drawing = plot.render()
    assert "nan" not in drawing
    assert "t &lt;" in drawing


def main(argv: list[str]) -> int:
    return stoker(["report", *argv])


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with two runs, the growing one the later."""
    monkeypatch.chdir(tmp_path)
    early = RUNS["short"]()
    early = replace(early, header=make_header(run_id="early", started_unix_s=1.0))
    write_run(early, tmp_path / "stoker-runs" / "early")
    write_run(growth_run(), tmp_path / "stoker-runs" / "late")
    return tmp_path


@pytest.mark.usefixtures("runs")
def test_latest_run_is_shown_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    text = capsys.readouterr().out
    assert "2.54x the start" in text
    assert f"stoker report {Path('stoker-runs/late')}" in text


@pytest.mark.usefixtures("runs")
def test_run_by_name_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["early", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["run_id"] == "early"
    assert figures["loaders"][0]["batches"] == 7


def test_page_goes_to_a_file_or_to_standard_output(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["late", "--html", "page.html"]) == 0
    assert capsys.readouterr().out.startswith("wrote page.html (")
    assert main(["late", "--html", "-"]) == 0
    assert capsys.readouterr().out == (runs / "page.html").read_text()


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["nope"], "`nope` is not a run folder"),
        (["late", "--rank", "3"], "`--rank` must be one of 0"),
        (["late", "--html", "no/such/folder/page.html"], "`--html` must name a file that can be written"),
    ],
)
def test_errors_are_one_line(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert words in said.err
    assert said.err.count("\n") == 1


def test_no_run_yet_says_how_to_make_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([]) == 2
    assert "make one with `stoker run train.py`" in capsys.readouterr().err


def test_wrong_command_line_is_2() -> None:
    assert main(["--json", "--html", "x"]) == 2


def test_reader_that_leaves_early_is_no_error(runs: Path) -> None:
    program = "import sys; from stoker.cli.main import main; sys.exit(main(['report', 'late', '--html', '-']))"
    root = Path(__file__).parents[2]
    environ = {**os.environ, "PYTHONPATH": str(root / "src")}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=runs, env=environ
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        child.stdout.close()
        assert child.stderr.read() == b""
        # What a shell reports of a command that a closed pipe ended.
        assert child.wait() == 128 + 13


def test_torch_is_not_needed() -> None:
    program = "import sys; import stoker.cli.report, stoker.ui.live; assert 'torch' not in sys.modules"
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    subprocess.run([sys.executable, "-c", program], check=True, env=environ)

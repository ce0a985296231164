"""A fleet's report as text and as a page: readable anywhere, nothing lost, nothing shown as fact that is not."""

from __future__ import annotations

import html.parser
import re

import msgspec
import pytest

from stoker.perf.fleet import examine, synthetic_fleet
from stoker.records.fleet import FleetReport
from stoker.ui.fleet_html import render_fleet_page
from stoker.ui.fleet_text import render_fleet
from stoker.ui.fleet_words import SYNTHETIC, write_headline
from stoker.ui.report_text import Style
from stoker.ui.svg import Plot


@pytest.fixture(scope="module")
def report() -> FleetReport:
    return examine(synthetic_fleet(2000))


@pytest.fixture(scope="module")
def bare(report: FleetReport) -> FleetReport:
    """What a trace without features comes to."""
    nothing = {name: [] for name in ("parts", "shares", "curves", "bottlenecks", "ports", "upgrades")}
    rest = {name: [] for name in ("sensitivities", "comparisons", "constants")}
    return msgspec.structs.replace(report, synthetic=False, **nothing, **rest)


def test_the_text_fits_a_terminal(report: FleetReport) -> None:
    lines = render_fleet(report, Style()).splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[0] == "stoker fleet · synthetic fleet of 2,000 jobs, seed 0"


def test_the_text_is_plain_where_the_terminal_is(report: FleetReport) -> None:
    text = render_fleet(report, Style(unicode=False))
    assert text.isascii()
    assert "\x1b" not in text
    assert "\x1b[" in render_fleet(report, Style(color=True))


@pytest.mark.parametrize("render", [render_fleet, render_fleet_page])
def test_a_made_up_fleet_says_so(report: FleetReport, bare: FleetReport, render) -> None:
    assert SYNTHETIC in render(report)
    assert SYNTHETIC not in render(bare)


@pytest.mark.parametrize("render", [render_fleet, render_fleet_page])
def test_what_is_recalled_is_marked(report: FleetReport, render) -> None:
    text = render(report)
    for shown in ("1 TB/s (unverified)", "70 % (unverified)", "memory-bound (unverified)"):
        assert shown in text
    assert "25 Gbps (unverified)" not in text


@pytest.mark.parametrize("render", [render_fleet, render_fleet_page])
def test_without_features_only_the_classes_are_shown(bare: FleetReport, render) -> None:
    text = render(bare)
    assert "Jobs by class" in text
    assert "How the time of a step is spent cannot be told" in text
    for title in ("Where the time of a step goes", "Who gains", "What an upgrade", "Assumed hardware"):
        assert title not in text


def test_the_headline_names_shares_that_sum_to_all(report: FleetReport) -> None:
    shares = [float(each) for each in re.findall(r"([\d.]+) %", write_headline(report).split(". ")[0])]
    assert len(shares) == 3
    assert sum(shares) == pytest.approx(100, abs=0.2)


class Checker(html.parser.HTMLParser):
    """Fails on tags that are not closed in order, on scripts, and on anything that would be fetched."""

    VOID = ("meta", "br", "circle", "line", "rect", "polyline", "polygon")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "img", "iframe")
        assert not {"src", "href", "onclick"} & {name for name, _ in attrs}
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


@pytest.mark.parametrize("which", ["report", "bare"])
def test_the_page_is_well_formed_and_fetches_nothing(which: str, request: pytest.FixtureRequest) -> None:
    checker = Checker()
    page = render_fleet_page(request.getfixturevalue(which))
    checker.feed(page)
    checker.close()
    assert not checker.open
    assert "://" not in page
    assert "url(" not in page


def test_names_cannot_break_out_of_the_page(report: FleetReport) -> None:
    evil = "<script>alert(1)</script>"
    port = msgspec.structs.replace(
        report.ports[0], best=[msgspec.structs.replace(report.ports[0].best[0], job=evil)], source=evil
    )
    page = render_fleet_page(msgspec.structs.replace(report, name=evil, form=evil, notes=[evil], ports=[port]))
    assert "<script" not in page
    text = render_fleet(msgspec.structs.replace(report, name="a\x1b[2Jb", notes=["\x07"]), Style())
    assert "\x1b" not in text
    assert "\x07" not in text


def test_a_plot_over_something_else_than_time_has_its_own_places() -> None:
    plot = Plot(
        title="t",
        begin_s=0,
        end_s=100,
        ticks=[0, 1],
        write_value=str,
        write_time=lambda x: f"{x:.0f} %",
        places=(0, 50),
    )
    drawing = plot.render()
    assert "50 %" in drawing
    assert drawing.count('class="tick"') == 2

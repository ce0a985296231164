"""A cut as a picture: sound XML, self-contained, readable, whatever the records hold."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.records.events import AnyEvent, CutChosen, GraphNode, GraphValue, RunEnded
from stoker.records.runlog import Run
from stoker.ui.graph_svg import render_svg
from stoker.ui.graph_text import render_graph
from stoker.ui.report_html import render_html
from stoker.ui.report_text import MAX_LINES, Style, render_text
from stoker.ui.summary import summarise
from tests.ui.cuts import CUTS, images, nothing_moves, recommender
from tests.ui.test_report import parse
from tests.ui.timeline import Course, growth_run, make_header, many_loaders_run, opened

SVG = "{http://www.w3.org/2000/svg}"


def texts_of(drawing: str) -> list[str]:
    return ["".join(element.itertext()) for element in ElementTree.fromstring(drawing).iter(f"{SVG}text")]


@pytest.mark.parametrize("name", CUTS)
def test_picture_is_sound_and_self_contained(name: str) -> None:
    drawing = render_svg(CUTS[name](), site="train.py:41")
    root = ElementTree.fromstring(drawing)
    assert not {element.tag.removeprefix(SVG) for element in root.iter()} & {"script", "image", "use", "foreignObject"}
    assert drawing.count("http") == 1, "the namespace is the only address"
    assert len(drawing) < 60_000
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    for shape in root.iter(f"{SVG}rect"):
        x, y = float(shape.attrib.get("x", 0)), float(shape.attrib.get("y", 0))
        assert 0 <= x <= x + float(shape.attrib["width"]) <= width
        assert 0 <= y <= y + float(shape.attrib["height"]) <= height


def test_picture_has_a_name_and_a_description() -> None:
    root = ElementTree.fromstring(render_svg(images(), site="train.py:41"))
    named = root.attrib["aria-labelledby"].split()
    title, description = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert title is not None
    assert description is not None
    assert [title.attrib["id"], description.attrib["id"]] == named
    assert title.text == "Cut of loader 0 (train.py:41), variant 0"
    assert "saves 7.43 ms" in (description.text or "")


def test_picture_says_what_is_where() -> None:
    texts = texts_of(render_svg(images()))
    for words in ("moved to data workers", "stateless, but stays", "stateful", "x3 · 2.30 MiB", "batch[1] · 512 B"):
        assert words in texts
    assert "it makes 500 KiB of 512 B: sending them takes longer than making them (1 call)" in texts
    assert {"to", "avg_pool2d", "one_hot", "conv2d"} <= set(texts)


def test_a_batch_that_is_sent_as_it_is() -> None:
    texts = texts_of(render_svg(nothing_moves()))
    assert {"batch[0] · 98.0 KiB", "batch[1] · 256 B"} <= set(texts)


def test_many_calls_stay_legible() -> None:
    drawing = render_svg(recommender(26, 14))
    texts = texts_of(drawing)
    assert {"mul ×26", "26 tensors · 832 KiB", "14 calls"} <= set(texts)
    assert float(ElementTree.fromstring(drawing).attrib["width"]) < 1600


def test_the_same_cut_gives_the_same_picture() -> None:
    assert render_svg(recommender()) == render_svg(recommender())


TEXT = st.text(max_size=12)
SMALL = st.integers(0, 5)
SECONDS = st.floats(0, 1e3)


def any_cut() -> st.SearchStrategy[CutChosen]:
    """Records as a damaged file may hold them: numbers that lead nowhere, to themselves, or back."""
    node = st.builds(
        GraphNode,
        number=SMALL,
        function=TEXT,
        inputs=st.lists(SMALL, max_size=3),
        outputs=st.lists(SMALL, max_size=3),
        seconds=SECONDS,
        site=TEXT,
        place=st.sampled_from(["moved", "stateless", "stateful", "elsewhere"]),
        why=TEXT,
    )
    value = st.builds(
        GraphValue,
        number=SMALL,
        producer=st.none() | SMALL,
        label=TEXT,
        shape=st.lists(st.integers(0, 10**6), max_size=5),
        dtype=TEXT,
        size_bytes=st.integers(0, 10**12),
        crosses=st.booleans(),
        kept=TEXT,
    )
    return st.builds(
        CutChosen,
        t_s=SECONDS,
        loader=SMALL,
        variant=SMALL,
        steps=SMALL,
        step_s=SECONDS,
        outcome=st.sampled_from(["moved", "stayed", "reverted"]),
        reason=TEXT,
        saved_s=st.floats(-1e3, 1e3),
        worker_s=SECONDS,
        bytes_before=st.integers(0, 10**12),
        bytes_after=st.integers(0, 10**12),
        nodes=st.lists(node, max_size=12),
        values=st.lists(value, max_size=12),
    )


@settings(max_examples=200, deadline=None)
@given(any_cut(), TEXT)
def test_any_record_can_be_shown(cut: CutChosen, site: str) -> None:
    ElementTree.fromstring(render_svg(cut, site=site))
    text = render_graph(cut, Style(width=80, unicode=False), site=site)
    assert text.isascii()
    assert all(len(line) <= 80 for line in text.splitlines())
    assert msgspec.json.decode(msgspec.json.encode(cut), type=AnyEvent) == cut


@settings(max_examples=50, deadline=None)
@given(st.lists(any_cut(), max_size=4))
def test_any_cuts_fit_the_reports(cuts: list[CutChosen]) -> None:
    events: list[AnyEvent] = [opened(0), opened(1), *cuts, RunEnded(t_s=1.0, outcome="finished")]
    run = Run(header=make_header(), events=events)
    summary = summarise(run)
    assert len(render_text(summary).splitlines()) <= MAX_LINES
    parse(render_html(run, summary))


def with_cuts(run: Run, *cuts: CutChosen) -> Run:
    return Run(header=run.header, events=[*run.events, *cuts])


def test_reports_say_it_in_a_line() -> None:
    run = with_cuts(growth_run(), images())
    summary = summarise(run)
    lines = render_text(summary).splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("Cut "))
    said = " ".join(line.strip() for line in lines[first : first + 2])
    assert "4 of 5 stateless calls moved to data workers, 7.43 ms a step; 9.19 MiB → 2.30 MiB a batch" in said
    assert said.endswith("9.19 MiB → 2.30 MiB a batch"), "records that lie in no folder can't be looked into"
    kept = summarise(Run(header=run.header, events=run.events, folder=Path.cwd() / "stoker-runs" / "one"))
    assert "see `stoker graph stoker-runs/one`" in " ".join(render_text(kept).split())
    page = render_html(run, summary)
    parsed = parse(page)
    assert "http" not in page.replace("http-equiv", "")
    assert "avg_pool2d" in parsed.texts
    figures = msgspec.json.decode(msgspec.json.encode(summary))
    assert figures["loaders"][0]["cut"]["moved"] == 4
    assert figures["loaders"][1]["cut"] is None


def test_reports_without_a_cut_are_silent() -> None:
    run = growth_run()
    assert "Cut" not in render_text(summarise(run))
    assert "cutgraph" not in render_html(run, summarise(run))


def test_what_stayed_takes_no_line_of_the_screen() -> None:
    stayed, reverted = nothing_moves(), images()
    reverted.loader, reverted.outcome, reverted.reason = 1, "reverted", "0.99x of the steps without it"
    run = with_cuts(growth_run(), stayed)
    assert "Cut" not in render_text(summarise(run))
    assert "cutgraph" in render_html(run, summarise(run))
    text = render_text(summarise(with_cuts(run, reverted)))
    assert "4 of 5 stateless calls moved and taken back: 0.99x of the steps without it" in text
    assert "(1 more)" not in text


def test_the_line_keeps_to_one_screen() -> None:
    cut = images()
    cut.reason = "word " * 100
    cut.outcome = "reverted"
    for make in (growth_run, many_loaders_run, lambda: Run(header=make_header(), events=Course().events)):
        run = with_cuts(make(), cut)
        for width in (60, 80, 100):
            lines = render_text(summarise(run), Style(width=width, unicode=False)).splitlines()
            assert len(lines) <= MAX_LINES
            first = next((number for number, line in enumerate(lines) if line.startswith("Cut ")), 0)
            assert all(len(line) <= width for line in lines[first : first + 2])

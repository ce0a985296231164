"""Pages about memory: whole documents whatever the names, the peak where it is, figures that sum."""

from __future__ import annotations

import pickle
import re
from xml.etree import ElementTree

import msgspec.structs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.perf.memory.snapshots.snapshot_file import parse_snapshot
from stoker.perf.memory.snapshots.snapshot_report import snapshot_report
from stoker.records.memory import ArenaSizes, HeldTooLong, MemoryMoment, MemoryRemedy, MemoryReport, MemoryShare
from stoker.ui.memory.html import render_memory_page
from stoker.ui.memory.plots import StackedMemory, draw_memory
from stoker.ui.memory.snapshot_html import render_snapshot_page
from stoker.ui.memory.words import MemoryUnit, write_arena, write_course, write_largest
from tests.perf.memory.snapshots import Recorder

HOSTILE = "<script>alert('&')</script>.py:3"


def tree_of(page: str) -> ElementTree.Element:
    """The body as a tree; fails where an element is not closed."""
    found = re.search(r"<main>.*</main>", page, re.DOTALL)
    assert found is not None
    return ElementTree.fromstring(re.sub(r"<(\w+) class=n>", r'<\1 class="n">', found[0]))


def texts_of(page: str) -> list[str]:
    return [text for each in tree_of(page).iter() for text in (each.text, each.tail) if text]


def report(*, available: int | None = None, peak_frac: float | None = 0.5, moments: int = 3) -> MemoryReport:
    fits = None if available is None else available >= 9_000
    return MemoryReport(
        name=HOSTILE, device="", available_bytes=available, ranks=1, batch_size=4, peak_bytes=9_000, fits=fits,
        phase="backward", module="head", line=HOSTILE,
        categories=[MemoryShare("parameters", 5_000), MemoryShare("allocator", 1_000), MemoryShare("context", 3_000)],
        modules=[MemoryShare("head", 5_000)], lines=[MemoryShare(HOSTILE, 5_000)], before_bytes=0,
        held=[HeldTooLong(variable="out", bytes=5, assigned=HOSTILE, last_used="a.py:3", saves_bytes=0)],
        remedies=[
            MemoryRemedy(
                name="recompute", how=HOSTILE, saves_bytes=1, peak_bytes=8_999, step_frac=0.1, losses="equal", fits=fits
            )
        ],
        largest_batch=7, largest_fitted=9, drawn=["parameters", "activations"], peak_frac=peak_frac,
        moments=[
            MemoryMoment(place / max(1, moments - 1), [4_000, place], "forward" if place < 2 else "backward")
            for place in range(moments)
        ],
        notes=[HOSTILE],
    )  # fmt: skip


@pytest.mark.parametrize("available", [None, 8_000, 10_000, 10**9])
@pytest.mark.parametrize("peak_frac", [None, 0.0, 1.0])
@pytest.mark.parametrize("moments", [0, 1, 3])
def test_a_page_of_any_report_is_whole(available: int | None, peak_frac: float | None, moments: int) -> None:
    page = render_memory_page(report(available=available, peak_frac=peak_frac, moments=moments))
    texts = texts_of(page)
    assert "<script>" not in page
    assert (f"peak · head · {HOSTILE}" in texts) == (peak_frac is not None and moments > 0)
    # A device much larger than the peak is not drawn: it would squeeze the layers.
    assert ("device" in texts) == (available in (8_000, 10_000))


def test_a_remedy_is_drawn_over_the_step_and_can_be_hidden() -> None:
    plain = report(available=8_000)
    courses = [[3_000, 3_500, 3_200], []]
    remedies = [
        msgspec.structs.replace(plain.remedies[0], name=name, peak_bytes=7_000 + place, course=course, fits=True)
        for place, (name, course) in enumerate(zip(("recompute", "segments"), courses, strict=True))
    ]
    tree = tree_of(render_memory_page(msgspec.structs.replace(plain, remedies=remedies)))
    boxes = [each for each in tree.iter("input") if each.get("type") == "checkbox"]
    assert [(each.get("id"), each.get("checked")) for each in boxes] == [("remedy0", "checked"), ("remedy1", None)]
    lines = [each.get("class", "").split() for each in tree.iter() if each.tag.endswith("polyline")]
    drawn = [kinds for kinds in lines if "remedy" in kinds and "halo" not in kinds]
    # What the process takes, for both; tensors where they are others than without.
    assert [(("taken" in kinds), kinds[-1]) for kinds in drawn] == [(True, "r0"), (False, "r0"), (True, "r1")]


def test_the_step_as_one_line() -> None:
    course, passes = write_course(report(moments=30), 60)
    assert len(course) == 60
    assert course[-1] == "█"
    assert passes.split() == ["forward", "backward"] or passes.split() == ["backward"]
    assert write_course(report(moments=0), 60) == []
    assert write_course(report(moments=3), 3) == []


@pytest.mark.parametrize(("plan", "said"), [(100, "no plan is smaller"), (101, "within 1.00 % of the bound")])
def test_the_arena_is_said_to_be_certified_or_not(plan: int, said: str) -> None:
    sizes = ArenaSizes(bound_bytes=100, plan_bytes=plan, default_bytes=139, expandable_bytes=102)
    words = write_arena(msgspec.structs.replace(report(), arena=sizes))
    assert said in words
    assert "(+39.0 %)" in words
    assert write_arena(report()) == ""


def test_the_largest_batch_says_whether_it_was_traced() -> None:
    plain = report()
    assert "(both sizes by the peaks of two traced ones)" in write_largest(plain)
    assert "(both sizes traced)" in write_largest(msgspec.structs.replace(plain, largest_traced=True))


def test_a_page_of_a_snapshot_is_whole() -> None:
    recorder = Recorder(expandable=False)
    kept = recorder.allocate(5 << 20, 7)
    plain = recorder.snapshot()
    plain["device_traces"][0][-1]["frames"] = [{"filename": "/a/<b>.py", "line": 1, "name": "f"}]
    texts = texts_of(render_snapshot_page(snapshot_report(parse_snapshot(pickle.dumps(plain), "a"), "<i>")))
    assert "peak · <b>.py:1" in texts
    recorder.free(kept)
    empty = {"segments": plain["segments"], "device_traces": []}
    assert texts_of(render_snapshot_page(snapshot_report(parse_snapshot(pickle.dumps(empty), "a"), "a")))


@given(
    columns=st.lists(st.lists(st.integers(0, 10**12), min_size=2, max_size=2), max_size=9),
    spans=st.lists(st.sampled_from(["forward", "backward", ""]), max_size=9),
)
def test_layers_stack_to_their_sum(columns: list[list[int]], spans: list[str]) -> None:
    at = [place / max(1, len(columns) - 1) for place in range(len(columns))]
    picture = StackedMemory(
        title="t", about="a", unit=MemoryUnit(1), at=at, peak=None, spans=spans,
        layers=[(f"c{row}", f"{row}", [column[row] for column in columns]) for row in range(2)],
    )  # fmt: skip
    figure = draw_memory(picture)
    drawn = ElementTree.fromstring(figure.drawing)
    polygons = [each for each in drawn.iter() if each.tag == "polygon"]
    assert len(polygons) == len(figure.legend) == sum(any(column[row] for column in columns) for row in range(2))
    tops = [float(pair.split(",")[1]) for each in polygons for pair in each.get("points", "").split()]
    assert all(0 <= top <= 1000 for top in tops)

"""A plan as text and as a page."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from msgspec.structs import replace

from stoker.core.units import format_cost, format_hours
from stoker.records.plan import Dot, Family, NearestMiss, Pick, PlanReport, PlanRow, Span
from stoker.ui.plan_html import render_plan_page
from stoker.ui.plan_plots import draw_plans, gpu_classes
from stoker.ui.plan_text import render_plan
from stoker.ui.plan_words import write_headline, write_strategy
from stoker.ui.report_text import Style


def span(likely: float) -> Span:
    return Span(likely=likely, low=likely / 1.5, high=likely * 1.5)


def plan(gpu: str, gpus: int, hours: float, cost: float, tier: str = "calibrated") -> PlanRow:
    return PlanRow(
        offer=f"<{gpu}>", gpu=gpu, gpus=gpus, servers=-(-gpus // 8), family="FSDP", data="fsdp", tensor=1, pipeline=1,
        replicas=gpus, micro_batch=4, accumulation=2, global_batch=8 * gpus, recomputed=["blocks.0", "blocks.1"],
        steps=1000, step_s=span(hours * 3.6), hours=span(hours), cost=span(cost), tier=tier,
        parts={"compute": 2.0, "communication": 1.0}, hidden_s=0.5, needed_bytes=60e9, memory_bytes=80e9, cores=12.0,
        offered_cores=96.0, reasons=["said & done"],
    )  # fmt: skip


FRONT = [plan("H100-SXM", 64, 2.0, 900.0, "extrapolated"), plan("A100-80GB-SXM", 16, 6.5, 300.0)]
REPORT = PlanReport(
    name="train.py", samples=5_000_000, batch="global batch of 512 samples, however many GPUs", currency="USD",
    is_money=True, prices="ours.toml, 2026-01-31", budget=500.0, deadline_h=12.0, sure=False, share=0.9,
    candidates=7896, unfit=574, refused=28,
    picks=[
        Pick(role="cheapest within 12 h", plan=FRONT[1], keeps=True, remarks=[]),
        Pick(role="fastest", plan=FRONT[0], keeps=False, remarks=["$400 beyond the budget"]),
    ],
    front=FRONT,
    dots=[Dot(offer="T4 box", gpu="T4", gpus=8, family="FSDP", tier="calibrated", hours=80.0, cost=420.0)],
    families=[
        Family(name="FSDP", tried=40, priced=3, on_front=2, why=""),
        Family(name="PEARL", tried=0, priced=0, on_front=0, why="the program has no embedding tables to partition"),
    ],
    advice=["The deadline binds: with 14 h it costs $250, $50 less."], miss=None, notes=["a note"],
)  # fmt: skip
NOTHING = replace(
    REPORT, picks=[], front=[], dots=[], advice=[],
    miss=NearestMiss(offer="x", gpu="T4", gpus=8, family="FSDP", missing_bytes=4e9, needed_bytes=20e9,
              remedies=["GPUs with 20 GB of memory"]),
)  # fmt: skip


class Balanced(HTMLParser):
    """Fails where tags do not close in order."""

    VOID = ("meta", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_text_says_what_to_take_what_else_and_why_not() -> None:
    text = render_plan(REPORT, Style(), "stoker plan train.py")
    assert (
        "Take 16x A100-80GB-SXM, FSDP + 2 modules recomputed: 6.5 h (4.3 h to 9.8 h) and $300 ($200 to $450)." in text
    )
    assert "batch 4 x 2 x 16 = 128 samples" in text
    assert "compute 67 %, exchange 33 %; 60.0 GB of 80.0 GB" in text
    assert "12.0 of 96 cores a server prepare its input" in text
    assert "$400 beyond the budget" in text
    assert "PEARL  the program has no embedding tables to partition" in text
    assert "7,896 candidates, 3 priced, 574 do not fit the memory of their GPUs, 28 have no prediction." in text
    assert text.endswith("Next  stoker plan train.py\n")


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("report", [REPORT, NOTHING])
def test_lines_keep_the_width_and_plain_terminals_get_plain_text(report: PlanReport, width: int) -> None:
    text = render_plan(report, Style(width=width, unicode=False))
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= width


def test_where_nothing_fits_it_says_what_is_missing() -> None:
    assert write_headline(NOTHING).startswith("Nothing fits: 4.0 GB are missing on each of 8x T4 with FSDP")
    assert "GPUs with 20 GB of memory" in render_plan(NOTHING)
    assert "GPUs with 20 GB of memory" in render_plan_page(NOTHING)
    nothing = replace(NOTHING, miss=None)
    assert write_headline(nothing) == "Nothing can be planned: no candidate has a prediction."
    assert "Nothing can be planned" in render_plan_page(nothing)


@pytest.mark.parametrize("report", [REPORT, NOTHING, replace(REPORT, budget=None, deadline_h=None)])
def test_the_page_is_whole_and_needs_nothing_else(report: PlanReport) -> None:
    page = render_plan_page(report)
    parser = Balanced()
    parser.feed(page.removeprefix("<!doctype html>\n"))
    parser.close()
    assert not parser.open
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert "<A100-80GB-SXM>" not in page  # names are text


def test_the_plot_has_a_circle_for_each_plan_and_a_line_for_each_limit() -> None:
    drawing = draw_plans(REPORT)
    assert drawing.count("<circle") == len(REPORT.front) + len(REPORT.dots)
    assert drawing.count('class="limit"') == 2
    assert 'class="best open c5"' in drawing
    alone = draw_plans(replace(REPORT, dots=[], front=FRONT[:1], picks=REPORT.picks[1:], budget=None))
    assert alone.count("<circle") == 1
    assert alone.count('class="limit"') == 1


def test_a_name_covers_no_mark_where_there_is_room() -> None:
    """Names lay over the dots beside their circles."""
    pick = plan("H100-SXM", 8, 10.0, 100.0)
    near = [
        Dot(offer="T4 box", gpu="T4", gpus=8, family="FSDP", tier="calibrated", hours=10.0 * step, cost=110.0)
        for step in (1.1, 1.2, 1.3, 1.4, 1.6)
    ]  # fmt: skip
    far = [replace(near[0], hours=hours, cost=cost) for hours, cost in ((1.0, 1000.0), (100.0, 10.0), (1, 10))]
    report = replace(REPORT, dots=[*near, *far], front=[pick], picks=[replace(REPORT.picks[0], plan=pick)], budget=None)
    drawing = draw_plans(report)
    circles = [
        (float(x), float(y)) for x, y in re.findall(r'<circle class="dot c\d" cx="([\d.]+)%" cy="([\d.]+)%"', drawing)
    ]
    assert len(circles) == len(near) + len(far)
    found = re.search(r'class="name" x="([\d.]+)%" y="([\d.]+)%" dx="(-?\d+)" dy="(-?\d+)"', drawing)
    assert found is not None
    x, y, dx, dy = map(float, found.groups())
    # A drawing of 900 x 440 pixels: the name's baseline, its 13 pixels of height and about 120 of width.
    left, middle = 9 * x + dx - (120 if dx < 0 else 0), 4.4 * y + dy - 5
    covered = [(cx, cy) for cx, cy in circles if left <= 9 * cx <= left + 120 and abs(4.4 * cy - middle) < 9]
    assert covered == []


def test_a_front_of_upper_ends_says_so() -> None:
    """The likely figures that are shown beat one another."""
    text, page = (render(replace(REPORT, sure=True)) for render in (render_plan, render_plan_page))
    for said in (text, page):
        assert "none is both faster and cheaper at the upper ends" in said
    assert "at the upper ends (90" not in render_plan(REPORT)
    assert draw_plans(replace(REPORT, sure=True)) != draw_plans(REPORT)


def test_colours_of_gpus_do_not_change_from_run_to_run() -> None:
    """Those with equally many plans come in the order of their plans, whatever the hashes of their names."""
    names = [f"gpu {number}" for number in range(20)]
    report = replace(REPORT, dots=[replace(REPORT.dots[0], gpu=name) for name in names])
    assert list(gpu_classes(report)) == ["H100-SXM", "A100-80GB-SXM", *names]


def test_strategies_are_said_as_people_say_them() -> None:
    assert write_strategy(FRONT[0]) == "FSDP + 2 modules recomputed"
    cut = replace(FRONT[0], data="zero1", tensor=4, pipeline=2, recomputed=[])
    assert write_strategy(cut) == "ZeRO-1 + tensor 4 + 2 stages"
    assert write_strategy(replace(FRONT[0], replicas=1, recomputed=[])) == "1 GPU"


@pytest.mark.parametrize(
    ("hours", "said"),
    [(0.001, "3.6 s"), (0.1, "6.0 min"), (0.5, "30 min"), (1.25, "1.2 h"), (12.0, "12 h"), (48.2, "48 h"),
     (100, "4.2 days"), (2400, "100 days"), (100_000, "11.4 years")],
)  # fmt: skip
def test_durations_are_as_precise_as_predictions(hours: float, said: str) -> None:
    assert format_hours(hours) == said


@pytest.mark.parametrize(
    ("amount", "currency", "said"),
    [(3.2, "USD", "$3.20"), (480.4, "USD", "$480"), (1234.5, "EUR", "€1,234"), (1234.5, "CHF", "1,234 CHF"),
     (12, "GPU-hours", "12 GPU-hours")],
)  # fmt: skip
def test_amounts_carry_their_currency(amount: float, currency: str, said: str) -> None:
    assert format_cost(amount, currency) == said


def test_names_in_the_plot_do_not_lie_on_each_other() -> None:
    """The second lies lower and to the left: below its own circle it would meet the name above the first."""
    picks = [
        replace(pick, plan=replace(FRONT[0], hours=span(hours), cost=span(cost)))
        for pick, hours, cost in zip(REPORT.picks[:2], (16.7, 11.6), (532.0, 742.0), strict=True)
    ]
    far = Dot(offer="T4 box", gpu="T4", gpus=8, family="DDP", tier="calibrated", hours=140.0, cost=30_000.0)
    front = [pick.plan for pick in picks]
    page = draw_plans(replace(REPORT, picks=picks, front=front, dots=[far], budget=3000.0, deadline_h=72.0))
    names = re.findall(r'<text class="name" x="([\d.]+)%" y="([\d.]+)%" dx="[-\d.]+" dy="([-\d.]+)"', page)
    assert len(names) == 2
    (x, y, down), (other_x, other_y, other_down) = (tuple(map(float, name)) for name in names)
    # A plot is some 360 px high.
    assert abs(x - other_x) >= 20 or abs((y - other_y) * 3.6 + down - other_down) >= 13

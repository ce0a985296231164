"""Figures of a run: right on known courses, silent where data are missing, sound on any records."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.records.events import (
    AnyEvent,
    IterationStarted,
    Notice,
    Progress,
    RunEnded,
    SampleQuarantined,
    WorkerLost,
    WorkersChanged,
)
from stoker.records.runlog import Run
from stoker.ui.advice import Situation, find_limit
from stoker.ui.loaders import LoaderSummary
from stoker.ui.report_html import render_html
from stoker.ui.report_text import MAX_LINES, Style, render_text
from stoker.ui.series import pieces, worker_steps
from stoker.ui.summary import Summary, summarise
from stoker.ui.windows import Split, between, monotone
from tests.ui.timeline import (
    Course,
    Loader,
    growth_run,
    make_header,
    many_loaders_run,
    opened,
    saturated_run,
    short_run,
    unused_run,
)

SEED = st.integers(0, 99)


def loader_of(run: Run, number: int = 0) -> LoaderSummary:
    return next(loader for loader in summarise(run).loaders if loader.loader == number)


def course_of(loader: Loader, batches: int, **fields: object) -> Course:
    course = Course()
    course.add(opened(0, **fields))
    course.iterate(loader, batches)
    return course


def run_of(course: Course, **header: object) -> Run:
    return Run(header=make_header(**header), events=course.events)


def test_start_is_the_first_twenty_warm_batches_with_the_declared_workers() -> None:
    start = loader_of(growth_run()).start
    assert start is not None
    # The first batch waits for the workers to start, and four more were in flight when it was delivered.
    assert (start.first_batch, start.batches, start.workers, start.depth) == (5, 20, 2, 2)
    assert start.split.input_wait_frac == pytest.approx(0.6, abs=0.03)
    assert start.samples_per_s == pytest.approx(64 / 0.31, rel=0.05)


def test_end_is_the_last_fifth_with_the_workers_found() -> None:
    loader = loader_of(growth_run())
    assert loader.end is not None
    assert loader.end.workers == loader.workers_last == 6
    assert loader.end.batches == pytest.approx(0.2 * loader.batches, rel=0.05)
    assert loader.end.split.input_wait_frac < 0.01
    assert loader.speedup == pytest.approx(2.5, rel=0.1)
    assert [change.workers for change in loader.changes] == [3, 4, 5, 6]


@given(st.floats(0.01, 0.5), st.floats(0.01, 0.5), st.integers(1, 8), st.floats(0.0, 0.1), st.integers(40, 200), SEED)
@settings(max_examples=30)
def test_no_gain_is_claimed_where_nothing_was_changed(
    item_s: float, step_s: float, workers: int, handover_s: float, batches: int, seed: int
) -> None:
    course = Course(seed=seed)
    course.add(opened(0, declared_workers=workers))
    train = Loader(0, item_s=40 * item_s, step_s=step_s, workers=workers, handover_s=handover_s)

    def warm(batch: int) -> None:
        train.item_s = item_s * (40 if batch < 15 else 1)

    course.iterate(train, batches, warm)
    run = run_of(course)
    loader = loader_of(run)
    assert (loader.changed, loader.speedup) == ([], None)
    text, page = render_text(summarise(run)), render_html(run, summarise(run))
    assert "x the start" not in text + page
    if loader.end is not None:
        assert "  steady    " in text
        assert f"{workers} worker{'s' if workers > 1 else ''} throughout, last " in text
        assert "steady: nothing was changed" in page


def test_warm_up_is_no_part_of_what_a_gain_is_measured_against() -> None:
    course = Course()
    course.add(opened(0))
    train = Loader(0, item_s=9.0, step_s=0.1)

    def act(batch: int) -> None:
        if batch == 5:  # forks, probe and cold pages are over
            train.item_s = 0.6
        if batch == 30:
            course.change(train, 6, "starved")

    course.iterate(train, 300, act)
    loader = loader_of(run_of(course))
    assert loader.changed == ["2 → 6 workers", "2 → 3 batches ahead for each worker"]
    assert loader.speedup == pytest.approx(0.3 / 0.102, rel=0.1)


def test_a_change_of_depth_alone_is_said() -> None:
    course = Course()
    course.add(opened(0))
    train = Loader(0, item_s=0.5, step_s=0.1)

    def act(batch: int) -> None:
        if batch == 40:
            course.add(WorkersChanged(t_s=course.now_s, loader=0, workers=2, depth=8, reason="deeper"))
            train.capacity, train.item_s = 16, 0.3

    course.iterate(train, 200, act)
    summary = summarise(run_of(course))
    assert summary.loaders[0].changed == ["2 → 8 batches ahead for each worker"]
    assert re.search(r"2 workers, 8 batches ahead each, \d\.\d\dx the start\n", render_text(summary))


@given(st.floats(0.01, 0.5), st.floats(0.01, 0.5), st.floats(0.0, 0.1))
@settings(max_examples=30)
def test_rates_are_samples_over_wall_time(item_s: float, step_s: float, handover_s: float) -> None:
    course = course_of(Loader(0, item_s=item_s, step_s=step_s, handover_s=handover_s), 120)
    loader = loader_of(run_of(course))
    for window in (loader.overall, loader.start, loader.end):
        if window is not None and window.samples_per_s is not None:
            assert window.samples_per_s == pytest.approx(window.samples / (window.to_s - window.from_s))
            assert window.active_s == pytest.approx(window.to_s - window.from_s)


def test_time_that_no_part_has_is_shown_as_other() -> None:
    first, last = (progress_at(t_s, batches) for t_s, batches in ((1.0, 1), (11.0, 101)))
    window = between(first, last)
    assert window is not None
    assert window.active_s == pytest.approx(10.0)
    assert window.split.input_wait_frac == pytest.approx(0.1)
    assert window.split.other_frac == pytest.approx(0.9)


def test_a_wait_that_goes_on_is_seen_by_those_who_look_now() -> None:
    first, last = (progress_at(t_s, batches) for t_s, batches in ((1.0, 1), (3.0, 101)))
    hanging = msgspec.structs.replace(last, waiting_s=8.0)
    window, now = between(first, hanging), between(first, hanging, until_now=True)
    assert window is not None
    assert now is not None
    assert window.samples_per_s == pytest.approx(50.0)
    assert now.samples_per_s == pytest.approx(10.0)
    assert now.split.input_wait_frac == pytest.approx(0.9)


def test_records_of_an_earlier_format_are_read_with_a_word_of_warning() -> None:
    run = run_of(course_of(Loader(0, item_s=0.2, step_s=0.1), 100), format=1)
    old = [
        msgspec.structs.replace(event, delivered_s=0.0, paused_s=0.0, starved_s=None)
        if isinstance(event, Progress)
        else event
        for event in run.events
    ]
    summary = summarise(replace(run, events=old))
    assert summary.loaders[0].overall is not None
    assert "recorded by an earlier stoker: rates are too high, and input wait is too low" in render_text(summary)
    assert summarise(run_of(course_of(Loader(0, item_s=0.2, step_s=0.1), 100))).caveats == []


def progress_at(t_s: float, batches: int) -> Progress:
    """Of a loader with 10 ms of input wait a batch, and nothing else that is known."""
    return Progress(
        t_s=t_s,
        delivered_s=t_s,
        loader=0,
        iteration=0,
        batches=batches,
        samples=batches,
        bytes=0,
        input_wait_s=batches * 0.01,
        h2d_s=0.0,
        compute_s=0.0,
        other_s=0.0,
        starved_steps=0,
        workers=2,
        ready=0,
        capacity=4,
        worker_busy_s=0.0,
        worker_idle_s=0.0,
        worker_cpu_s=0.0,
    )


def test_busiest_loader_makes_the_headline() -> None:
    summary = summarise(growth_run())
    assert summary.main == 0
    assert [loader.loader for loader in summary.loaders] == [0, 1]


def test_training_makes_the_headline_before_a_longer_evaluation() -> None:
    course = Course()
    for number, batches, steps in ((0, 300, 0), (1, 60, 60)):
        course.add(opened(number))
        course.iterate(Loader(number, item_s=0.05, step_s=0.04, counters={"optimizer_steps": steps}), batches)
    run = run_of(course, world_size=2)
    summary = summarise(run, [run, run])
    assert summary.main == 1
    assert [rank.samples_per_s for rank in summary.ranks] == [summary.loaders[1].overall.samples_per_s] * 2


def test_short_runs_give_no_figures_they_cannot_support() -> None:
    loader = loader_of(short_run(3))
    assert (loader.overall, loader.start, loader.end, loader.speedup) == (None, None, None, None)
    assert loader.start_missing == loader.end_missing == "run too short: 3 batches"
    some = loader_of(short_run(11))
    assert some.start is not None
    assert some.end_missing == "run too short: 11 batches"
    assert summarise(short_run(1)).limit.text == "run too short: 1 batch"


def test_start_with_other_workers_than_declared_is_not_called_a_start() -> None:
    course = course_of(Loader(0, item_s=0.2, step_s=0.1, workers=4), 100)
    loader = loader_of(run_of(course))
    assert loader.start is None
    assert loader.start_missing == "not measured: the run began with 4 workers, the program declares 2"


def test_change_within_the_first_batches_leaves_no_start() -> None:
    course = Course()
    train = Loader(0, item_s=0.2, step_s=0.1)
    course.add(opened(0))
    course.iterate(train, 100, lambda batch: course.change(train, 5, "starved") if batch == 3 else None)
    assert "changed within the first batches" in loader_of(run_of(course)).start_missing


def test_what_was_said_before_a_trial_was_over_does_not_hold() -> None:
    course = Course()
    course.add(opened(0, tier="process", reason="ended before it was known whether moving it pays", declared_workers=0))
    course.iterate(Loader(0, item_s=0.02, step_s=0.1, workers=1), 30)
    course.add(opened(0, tier="elastic", reason="samples are the same elsewhere", declared_workers=0))
    course.iterate(Loader(0, item_s=0.02, step_s=0.1, workers=1), 30)
    run = run_of(course)
    assert (loader_of(run).tier, loader_of(run).reason) == ("elastic", "samples are the same elsewhere")
    assert "whether moving it pays" not in render_text(summarise(run))


def test_long_reasons_and_verdicts_are_read_to_their_end() -> None:
    reason = "declares no workers, and `dataset.data` and others hold more than 1 MiB, too much to watch for changes"
    course = course_of(Loader(0, item_s=0.2, step_s=0.1), 1, reason=reason)
    text = render_text(summarise(run_of(course)))
    assert reason in " ".join(text.split())
    assert " · 1 batch · " in text
    assert len(text.splitlines()) <= MAX_LINES


def test_a_loader_that_gave_no_batch_is_tried_without_stoker_next() -> None:
    course = Course()
    course.add(opened(0))
    advice = summarise(run_of(course)).advice
    assert advice.command.startswith("stoker run --off ")


def test_killed_run_says_so() -> None:
    summary = summarise(replace(growth_run(end=""), folder=Path("runs/a")))
    assert summary.outcome == ""
    assert any("no end record" in caveat for caveat in summary.caveats)


@pytest.mark.parametrize(
    ("wait_s", "starved", "kind"),
    [
        (0.0025, 0, "input-handover"),  # ready, and yet the program waits
        (0.0005, 100, "input-handover"),  # never ready, but no item takes that little
        (0.05, 100, "input-order"),  # idle workers, and one item that all wait for
    ],
)
def test_idle_workers_are_told_apart_by_what_the_program_waits_for(wait_s: float, starved: int, kind: str) -> None:
    first, last = (
        Progress(
            t_s=t_s,
            loader=0,
            iteration=0,
            batches=batches,
            samples=batches,
            bytes=0,
            input_wait_s=batches * wait_s,
            h2d_s=0.0,
            compute_s=batches * 0.001,
            other_s=0.0,
            starved_steps=batches * starved // 100,
            workers=2,
            ready=0,
            capacity=4,
            worker_busy_s=batches * 0.0001,
            worker_idle_s=batches * 0.001,
            worker_cpu_s=batches * 0.0001,
        )
        for t_s, batches in ((1.0, 0), (9.0, 100))
    )
    window = between(first, last)
    situation = Situation(
        program=[],
        run="r",
        cores=8,
        config={},
        tier="elastic",
        reason="",
        window=window,
        window_missing="",
        growing=False,
    )
    assert find_limit(situation).kind == kind


def test_a_wait_for_stokers_own_work_is_called_that() -> None:
    course = course_of(Loader(0, item_s=0.001, step_s=0.002, handover_s=0.0009), 400)
    limit = summarise(run_of(course)).limit
    assert limit.kind == "input-handover"
    assert "not for items, but for the hand-over of each batch (1.30 ms)" in limit.text


def test_run_still_in_memory_is_neither_killed_nor_advertised_as_a_folder() -> None:
    summary = summarise(growth_run(end=""))
    assert summary.caveats == []
    assert summary.advice.command.startswith("stoker run ")
    assert " so far · " in render_text(summary, Style(width=100)).splitlines()[0]


def test_lost_workers_are_grouped_and_notices_counted() -> None:
    course = course_of(Loader(0, item_s=0.2, step_s=0.1), 10)
    for worker in range(4):
        cause = "killed by signal 9" if worker < 3 else "silent for 60 s"
        course.add(
            WorkerLost(t_s=1.0, loader=0, worker=worker, pid=1, cause=cause, released=2, stack="f.py:1" * worker)
        )
        course.add(Notice(t_s=1.0, text="same"))
    summary = summarise(run_of(course))
    assert [(lost.cause, lost.count, lost.released) for lost in summary.lost_workers] == [
        ("killed by signal 9", 3, 6),
        ("silent for 60 s", 1, 2),
    ]
    assert summary.lost_workers[0].stack == "f.py:1"
    assert [(notice.text, notice.count) for notice in summary.notices] == [("same", 4)]


@pytest.mark.parametrize(
    ("loader", "fields", "header", "kind", "command"),
    [
        ({"item_s": 0.05, "step_s": 0.1}, {}, {}, "compute", "stoker report"),
        ({"item_s": 0.05, "step_s": 0.01, "h2d_s": 0.1}, {}, {}, "copy", "stoker report"),
        ({"item_s": 0.05, "step_s": 0.01, "other_s": 0.1}, {}, {}, "other", "stoker report"),
        ({"item_s": 0.5, "step_s": 0.05}, {}, {"cores": 2.0}, "input-cpu", "stoker doctor"),
        (
            {"item_s": 0.5, "step_s": 0.05},
            {},
            {"config": {"cpu_budget": 2.0}},
            "input-cpu",
            "stoker run --cpu-budget 8 train.py",
        ),
        ({"item_s": 0.5, "step_s": 0.05}, {"tier": "pinned"}, {}, "input-tier", "stoker explain"),
        ({"item_s": 0.5, "step_s": 0.05, "workers": 0}, {"tier": "process"}, {}, "input-tier", "stoker explain"),
        ({"item_s": 0.5, "step_s": 0.05}, {}, {}, "input-workers", "stoker report"),
        (
            {"item_s": 0.5, "step_s": 0.05},
            {},
            {"config": {"max_workers": 2}},
            "input-workers",
            "stoker run --max-workers 4 train.py",
        ),
        (
            {"item_s": 0.5, "step_s": 0.05, "cpu_frac": 0.1},
            {},
            {"config": {"workers": 2}},
            "input-storage",
            "stoker run --workers auto train.py",
        ),
    ],
)
def test_limit_and_advice(
    loader: dict[str, float], fields: dict[str, object], header: dict[str, object], kind: str, command: str
) -> None:
    course = course_of(Loader(0, **loader), 200, **fields)  # type: ignore[arg-type]
    run = run_of(course, **{"argv": ["train.py"], **header})
    summary = summarise(replace(run, folder=Path("runs/a")))
    assert summary.limit.kind == kind, summary.limit.text
    assert summary.advice.command.startswith(command)


def test_ranks_of_one_host_share_its_cores() -> None:
    course = course_of(Loader(0, item_s=0.5, step_s=0.05), 200)
    summary = summarise(run_of(course, cores=4.0, world_size=2, local_world_size=2))
    assert summary.limit.kind == "input-cpu"


def test_growth_until_the_end_is_said() -> None:
    course = Course()
    train = Loader(0, item_s=1.0, step_s=0.05)
    course.add(opened(0))
    course.iterate(train, 100, lambda batch: course.change(train, 3, "starved") if batch == 95 else None)
    assert summarise(run_of(course)).limit.kind == "input-growing"


def test_no_loader_at_all() -> None:
    summary = summarise(unused_run())
    assert (summary.main, summary.loaders, summary.limit.kind) == (None, [], "none")


def test_headlines_of_all_ranks_are_listed() -> None:
    one = growth_run()
    two = Run(header=make_header(rank=1, world_size=2), events=saturated_run().events)
    summary = summarise(one, [one, two])
    assert [rank.rank for rank in summary.ranks] == [0, 1]
    assert summary.ranks[1].input_wait_frac == pytest.approx(0.67, abs=0.02)
    assert "2 ranks" in render_text(summary)
    assert summarise(one, [one]).ranks == []


def test_workers_gone_at_the_end_of_an_iteration_are_no_change() -> None:
    course = course_of(Loader(0, item_s=0.2, step_s=0.1), 100)
    last = course.events[-1]
    assert isinstance(last, Progress)
    course.events[-1] = msgspec.structs.replace(last, workers=0)
    run = run_of(course)
    assert loader_of(run).workers_last == 2
    assert [step.workers for step in worker_steps(run, 0)] == [2]


def test_json_twin_comes_back_the_same() -> None:
    summary = summarise(growth_run())
    assert msgspec.json.decode(msgspec.json.encode(summary), type=Summary) == summary


FRACTION = st.floats(0, 1e7, allow_nan=False)
COUNT = st.integers(0, 10**9)
SMALL = st.integers(0, 3)
TEXT = st.text(max_size=30)


def progress() -> st.SearchStrategy[Progress]:
    seconds = ("input_wait_s", "h2d_s", "compute_s", "other_s", "worker_busy_s", "worker_idle_s", "worker_cpu_s")
    counts = ("batches", "samples", "bytes", "starved_steps")
    return st.builds(
        Progress,
        t_s=FRACTION,
        loader=SMALL,
        iteration=SMALL,
        workers=SMALL,
        ready=SMALL,
        capacity=SMALL,
        **dict.fromkeys(seconds, FRACTION),
        **dict.fromkeys(counts, COUNT),
    )


def events() -> st.SearchStrategy[list[AnyEvent]]:
    one = st.one_of(
        progress(),
        st.builds(opened, SMALL, t_s=FRACTION, declared_workers=SMALL, reason=TEXT, site=TEXT),
        st.builds(WorkersChanged, t_s=FRACTION, loader=SMALL, workers=SMALL, depth=SMALL, reason=TEXT),
        st.builds(IterationStarted, t_s=FRACTION, loader=SMALL, iteration=SMALL, workers=SMALL, start_s=FRACTION),
        st.builds(WorkerLost, t_s=FRACTION, loader=SMALL, worker=SMALL, pid=SMALL, cause=TEXT, released=SMALL),
        st.builds(SampleQuarantined, t_s=FRACTION, loader=SMALL, index=TEXT, path=TEXT, seed=SMALL, action=TEXT),
        st.builds(Notice, t_s=FRACTION, text=TEXT),
        st.builds(RunEnded, t_s=FRACTION, outcome=TEXT),
    )
    return st.lists(one, max_size=40).map(lambda found: sorted(found, key=lambda event: event.t_s))


def check_split(split: Split) -> None:
    assert all(0 <= part <= 1 for part in split.parts())
    assert sum(split.parts()) == pytest.approx(1.0)


@settings(max_examples=150, deadline=None)
@given(events())
def test_any_records_give_sound_reports(found: list[AnyEvent]) -> None:
    run = Run(header=make_header(), events=found)
    summary = summarise(run, [run, run])
    for loader in summary.loaders:
        for window in (loader.overall, loader.start, loader.end):
            if window is not None:
                check_split(window.split)
                assert window.batches > 0
                assert math.isfinite(window.batches_per_s)
                assert 0 <= window.starved_frac <= 1
        for stretch in pieces(run, loader.loader):
            assert all(point.from_s <= point.to_s for point in stretch)
    assert len(render_text(summary).splitlines()) <= MAX_LINES
    assert render_html(run, summary).endswith("</html>\n")
    assert msgspec.json.decode(msgspec.json.encode(summary), type=Summary) == summary


@given(st.lists(progress(), max_size=20))
def test_counters_that_fall_are_left_out(found: list[Progress]) -> None:
    kept = monotone(found)
    for first, last in pairwise(kept):
        assert last.batches >= first.batches
        assert last.t_s >= first.t_s
        window = between(first, last)
        assert window is None or window.batches == last.batches - first.batches


@given(st.integers(1, 60), st.floats(0.01, 2.0), st.floats(0.01, 2.0), st.integers(1, 8))
@settings(max_examples=40, deadline=None)
def test_course_is_cut_without_losing_a_batch(batches: int, item_s: float, step_s: float, workers: int) -> None:
    course = course_of(Loader(0, item_s=item_s, step_s=step_s, workers=workers), batches)
    points = [point for stretch in pieces(run_of(course), 0) for point in stretch]
    assert sum(point.window.batches for point in points) == batches


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("unicode", [True, False])
@pytest.mark.parametrize("make", [growth_run, saturated_run, short_run, unused_run, many_loaders_run])
def test_text_fits_one_screen(make: object, unicode: bool, width: int) -> None:
    summary = summarise(make())  # type: ignore[operator]
    text = render_text(summary, Style(width=width, unicode=unicode))
    lines = text.splitlines()
    assert len(lines) <= 24
    # The next command is for copying and never cut.
    assert all(len(line) <= width for line in lines if summary.advice.command not in line)
    assert "\x1b" not in text
    assert unicode or text.isascii()
    assert summary.advice.command in text


def test_colour_changes_no_word() -> None:
    summary = summarise(growth_run())
    coloured = render_text(summary, Style(color=True))
    assert re.sub(r"\x1b\[\d+m", "", coloured) == render_text(summary)
    assert coloured != render_text(summary)

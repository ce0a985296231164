"""A plan that makes a program fit, in words: what is done, what it comes to, and when a count is too much."""

from __future__ import annotations

from msgspec.structs import replace

from stoker.records.fitting import CountedPeak, FitAdvice, FitMeasure, FitPlan, FitRun, FitRuns, RejectedFit
from stoker.ui.fitting.html import draw_fits
from stoker.ui.fitting.text import render_fits, write_fit_lines
from stoker.ui.fitting.words import write_advice_lines, write_outcome, write_plan

MB = 10**6
PLAN = FitPlan(
    name="train.py", budget_bytes=200 * MB, device="emulated device", plain_bytes=300 * MB, plain_step_s=1.0,
    peak_bytes=190 * MB, step_s=1.12, certified=True,
    measures=(
        FitMeasure(kind="used_up", saves_bytes=40 * MB, added_s=0.0),
        FitMeasure(kind="recompute", paths=("0", "1"), keeps="products", saves_bytes=50 * MB, added_s=0.02),
        FitMeasure(kind="recompute", paths=("2",), saves_bytes=20 * MB, added_s=0.1),
    ),
    rejected=(RejectedFit(name="recomputation of `<3>`", peak_bytes=None, step_s=None, reason="it counts its calls"),),
)  # fmt: skip
RUN = FitRun(plan=PLAN, mode="auto", applied=("used_up", "recompute"), counted=(CountedPeak(1, 189 * MB),))


def test_a_plan_is_one_line() -> None:
    assert write_plan(PLAN) == (
        "300.0 MB do not fit 200.0 MB: gradients used up in the backward pass, 2 modules recomputed, their products "
        "kept, 1 module recomputed, then 190.0 MB, step +12 %, losses equal"
    )
    assert "nothing is changed" in write_plan(replace(PLAN, plain_bytes=100 * MB, measures=()))
    miss = write_plan(replace(PLAN, peak_bytes=210 * MB, lacks_bytes=10 * MB))
    assert "the nearest miss has 210.0 MB" in miss
    assert miss.endswith("and lacks 10.0 MB")
    chunks = FitMeasure(kind="chunks", number=4, promise="within 1e-6")
    assert write_plan(replace(PLAN, measures=(chunks,))).endswith("losses within 1e-6")


def test_a_count_above_the_prediction_names_the_measures() -> None:
    assert write_outcome(RUN) == "counted 189.0 MB in the first steps, predicted 190.0"
    assert write_outcome(replace(RUN, counted=())) == ""
    over = write_outcome(replace(RUN, counted=(CountedPeak(1, 203 * MB),)))
    assert "7 % more than predicted with gradients used up in the backward pass, recomputation" in over
    assert "over the budget of 200.0 MB" in over
    assert "more than predicted" not in write_outcome(replace(RUN, counted=(CountedPeak(1, 199 * MB),)))


def test_a_rank_of_a_pipeline_is_counted_against_its_own_peak() -> None:
    stages = FitMeasure(
        kind="stages", number=2, paths=("blocks.2",), peaks=(150 * MB, 190 * MB), promise="within rounding"
    )
    plan = replace(PLAN, ranks=2, measures=(stages,))
    assert "layers in 2 stages, one a rank, cut at blocks.2, then 190.0 MB" in write_plan(plan)
    assert write_plan(plan).endswith("losses within rounding")
    first = FitRun(plan=plan, mode="auto", applied=("stages",), counted=(CountedPeak(1, 160 * MB),))
    assert "predicted 150.0: 7 % more than predicted with a pipeline" in write_outcome(first)
    assert write_outcome(replace(first, rank=1)) == "counted 160.0 MB in the first steps, predicted 190.0"


def test_a_report_has_all_of_it_as_text_and_page() -> None:
    runs = FitRuns(runs=(RUN,))
    text, page = render_fits(runs), draw_fits(runs)
    for shown in (text, page):
        assert "carried out" in shown
        assert "it counts its calls" in shown
        assert "99.5 %" in shown
    assert "&lt;3&gt;" in page
    assert render_fits(FitRuns()) == draw_fits(FitRuns()) == ""
    assert [line[:20] for line in write_fit_lines(runs)] == ["fit: 300.0 MB do not", "fit: counted 189.0 M"]
    assert "reported, not carried out" in render_fits(FitRuns(runs=(replace(RUN, mode="report"),)))


ADVICE = (
    FitAdvice(kind="bf16", line="train.py:31", peak_bytes=150 * MB, step_s=0.8),
    FitAdvice(kind="accumulate", line="train.py:35", number=4, samples=8, peak_bytes=180 * MB, step_s=1.05, measures=1),
    FitAdvice(kind="batch", line="train.py:20", samples=8, peak_bytes=170 * MB, step_s=0.3),
    FitAdvice(kind="delete", line="train.py:32", name="out", peak_bytes=210 * MB, step_s=1.0),
    FitAdvice(kind="zero_grad", line="train.py:33", name="train.py:35", peak_bytes=205 * MB, step_s=None),
)


def test_advice_says_the_line_the_peak_and_the_step() -> None:
    plan = replace(PLAN, peak_bytes=230 * MB, lacks_bytes=30 * MB, advice=ADVICE)
    bf16, parts, batch, delete, zero = write_advice_lines(plan)
    start = "advised, not done: "
    assert bf16 == f"{start}autocast to bf16 around the model's call of train.py:31: 150.0 MB, step -20 %"
    assert parts == (
        f"{start}add up the gradients of 4 batches of 8 samples for each step of train.py:35: 180.0 MB with 1 measure "
        "of --fit, step +5 %"
    )
    assert batch.endswith("a batch of 8 samples from the loader of train.py:20: 170.0 MB, step -70 %, of fewer samples")
    assert delete.endswith("`del out` after train.py:32: 210.0 MB, step +0 %, lacks 10.0 MB")
    assert zero.endswith("`zero_grad()` of train.py:33 right after the step of train.py:35: 205.0 MB, lacks 5.0 MB")
    runs = FitRuns(runs=(replace(RUN, plan=plan),))
    for shown in (" ".join(render_fits(runs).split()), draw_fits(runs)):
        assert "Changes to the program" in shown
        assert "lacks 10.0 MB" in shown
    assert sum("advised, not done" in line for line in write_fit_lines(runs)) == len(ADVICE)
    nowhere = replace(plan, advice=(replace(ADVICE[0], line=""),))
    assert "around the model's call: " in write_advice_lines(nowhere)[0]


def test_host_memory_has_its_words() -> None:
    measures = (FitMeasure(kind="states_away"), FitMeasure(kind="offload", paths=("0", "1")))
    line = write_plan(replace(PLAN, measures=measures))
    assert "states of the optimizer in host memory, what 2 modules saved in host memory, then" in line

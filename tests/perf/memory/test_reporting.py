"""What `stoker memory` says of remedies: a trace in their form has the last word."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from stoker.perf.features.lifetimes import CATEGORIES
from stoker.perf.memory.choice.fitting import FitQuestion, plan_fit
from stoker.perf.memory.reporting import MemoryQuestion, report
from stoker.records.fitting import FitPlan
from stoker.ui.memory.words import REMEDY_HEAD, MemoryUnit, remedy_rows
from tests.perf.memory.choice.test_fitting import MODEL, PLAIN, plain_peak

READ = replace(MODEL, gradients_read="somebody")
AVAILABLE = int(0.75 * plain_peak())


def traced_as(peak: int) -> MemoryQuestion:
    """A program whose plan has such a peak in its trace."""

    def planned(question: FitQuestion) -> FitPlan:
        plan = replace(plan_fit(question), peak_bytes=peak, lacks_bytes=max(0, peak - AVAILABLE), certified=True)
        assert {each.kind for each in plan.measures} == {"recompute"}
        return plan

    return MemoryQuestion(
        features=PLAIN[0], timeline=PLAIN[1], available=AVAILABLE, emulated=True, model=READ, planned=planned
    )


def test_a_remedy_whose_trace_does_not_fit_is_not_said_to() -> None:
    found = report(traced_as(AVAILABLE + 1))
    (recompute,) = [each for each in found.remedies if each.name.startswith("recompute")]
    assert (recompute.peak_bytes, recompute.fits, recompute.certified) == (AVAILABLE + 1, False, True)
    assert not any(each.fits and each.certified for each in found.remedies)
    words = [row[REMEDY_HEAD.index("fits")] for row in remedy_rows(found.remedies, MemoryUnit(found.peak_bytes))]
    assert "yes" not in words
    assert "no" in words


def test_what_was_traced_and_fits_is_said_to_and_what_was_not_is_predicted() -> None:
    found = report(traced_as(AVAILABLE - 1))
    rows = remedy_rows(found.remedies, MemoryUnit(found.peak_bytes))
    words = {row[0].partition(" ")[0]: row[REMEDY_HEAD.index("fits")] for row in rows}
    assert words["recompute"] == "yes"
    untraced = report(MemoryQuestion(
        features=PLAIN[0], timeline=PLAIN[1], available=AVAILABLE, emulated=True, model=READ
    ))  # fmt: skip
    rows = remedy_rows(untraced.remedies, MemoryUnit(untraced.peak_bytes))
    words = {row[0].partition(" ")[0]: row[REMEDY_HEAD.index("fits")] for row in rows}
    assert words["recompute"] == "predicted"


def test_what_ranks_share_is_priced_against_the_step_with_ddps_exchange_or_not_at_all() -> None:
    def share(seconds: dict[str, float]) -> float | None:
        found = report(MemoryQuestion(
            features=PLAIN[0], timeline=PLAIN[1], emulated=True, ranks=2, model=READ, step_s=seconds.get
        ))  # fmt: skip
        (remedy,) = [each for each in found.remedies if each.name == "FSDP2 over 2 ranks"]
        return remedy.step_frac

    # Seconds of an exchange that are many times those of the computation.
    assert share({"ddp": 100.0, "fsdp": 125.0}) == 0.25
    assert share({"ddp": 100.0, "fsdp": 25.0}) == -0.75
    assert share({"ddp": 100.0}) is None
    assert share({"fsdp": 125.0}) is None


def test_all_remedies_of_ranks_are_shares_of_one_step() -> None:
    def shares(**seconds: float) -> dict[str, float | None]:
        found = report(MemoryQuestion(
            features=PLAIN[0], timeline=PLAIN[1], emulated=True, ranks=2, model=READ, step_s=seconds.get
        ))  # fmt: skip
        return {each.name: each.step_frac for each in found.remedies}

    alone, exchanged = shares(), shares(ddp=100.0, fsdp=125.0)
    (name,) = (each for each in alone if each.startswith("recompute"))
    before, behind = alone[name], exchanged[name]
    assert before is not None
    assert behind == pytest.approx(before * sum(call.seconds for call in PLAIN[1].calls) / 100.0)


def test_a_traced_weight_its_gradient_and_its_states_have_the_rows_by_which_ranks_share_them() -> None:
    rows = {
        category: sorted((each.bytes, each.rows) for each in PLAIN[1].buffers if each.category == category)
        for category in CATEGORIES
    }
    weights = rows.pop("parameters")
    assert weights
    assert all(count and nbytes % (4 * count) == 0 for nbytes, count in weights)
    assert set(rows.pop("gradients")) == set(weights)
    assert {each for each in rows.pop("optimizer") if each[0] > 8} == set(weights)
    assert not any(count for others in rows.values() for _, count in others)

"""Plans that make a program fit, written into a run folder and read back."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from stoker.core.errors import RunFolderError
from stoker.records.fitting import CountedPeak, FitMeasure, FitPlan, FitRun, FitRuns
from stoker.records.fitting_file import FIT_FILE, read_fits, write_fits

PLAN = FitPlan(
    name="train.py", budget_bytes=200, device="emulated device", plain_bytes=300, plain_step_s=1.0, peak_bytes=190,
    step_s=1.1, certified=True,
    measures=(
        FitMeasure(kind="recompute", paths=("blocks.0",), saves_bytes=60, added_s=0.1),
        FitMeasure(kind="recompute", paths=("blocks.1",), keeps="products", saves_bytes=50, added_s=0.0),
    ),
)  # fmt: skip


def test_runs_are_read_back_as_they_were_written(tmp_path: Path) -> None:
    run = FitRun(plan=PLAN, mode="auto", applied=("recompute",), counted=(CountedPeak(1, 180), CountedPeak(2, 189)))
    write_fits(tmp_path / "new", FitRuns(runs=(run,)))
    assert read_fits(tmp_path / "new").runs == (run,)
    assert run.counted_bytes == 189
    assert [each.paths for each in PLAN.of("recompute")] == [("blocks.0",), ("blocks.1",)]


def test_a_plan_that_does_not_fit_changes_nothing() -> None:
    assert PLAN.fits
    assert PLAN.changes
    assert not replace(PLAN, lacks_bytes=1).changes
    assert not replace(PLAN, measures=()).changes


def test_a_folder_without_the_file_has_none(tmp_path: Path) -> None:
    assert read_fits(tmp_path) == FitRuns()


@pytest.mark.parametrize("content", [b"{", b'{"runs": [{}]}', b'{"format": 2}'])
def test_what_is_not_such_a_file_is_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FIT_FILE).write_bytes(content)
    with pytest.raises(RunFolderError, match=FIT_FILE):
        read_fits(tmp_path)

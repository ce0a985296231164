"""One list of parts; what folds it leaves none out and counts none twice."""

from __future__ import annotations

import pytest

from stoker.records.parts import PARTS, PREDICTED, REPORTED, Folding, fold


@pytest.mark.parametrize("folding", [PREDICTED, REPORTED])
def test_each_part_is_in_one_row_in_order(folding: Folding) -> None:
    assert tuple(part for parts in folding.values() for part in parts) == PARTS


@pytest.mark.parametrize("folding", [PREDICTED, REPORTED])
def test_rows_sum_to_the_parts(folding: Folding) -> None:
    seconds = {part: 2.0**number for number, part in enumerate(PARTS)}
    assert sum(fold(seconds, folding).values()) == sum(seconds.values())


def test_a_report_folds_what_marks_do_not_tell_apart() -> None:
    assert fold({"input": 1.0, "compute": 2.0, "optimizer": 4.0, "other": 8.0}, REPORTED) == {
        "input wait": 1.0, "copy to device": 0.0, "compute": 6.0, "other": 8.0,
    }  # fmt: skip

from dataclasses import replace

import numpy as np
import pytest

from stoker.perf.study.tables.rows import published
from stoker.perf.study.workloads.mpt import SHAPES, TERMS, at_spec, study

ROWS = [row for row in published() if row.family == "mpt"]


def test_shapes_have_the_published_parameters() -> None:
    assert len(ROWS) == 139
    for row in ROWS:
        assert SHAPES[row.model].parameters(row.seq_len) == pytest.approx(row.params, rel=1e-3)


def test_step_times_are_those_that_were_published() -> None:
    made, rows = study()
    assert made.measured == pytest.approx([row.step_s for row in rows], rel=1e-3)
    assert made.at_spec.shape == (139, len(TERMS))


def test_the_work_of_one_row_by_hand() -> None:
    row = next(r for r in ROWS if r.model == "MPT-7b" and r.seq_len == 2048 and r.gpus == 8 and not r.checkpointing)
    tokens = 6 * 2048
    times = dict(zip((term.name for term in TERMS), at_spec(row), strict=True))
    products = 3 * (2 * 12 * 4096**2 * 32 + 2 * 50_368 * 4096) * tokens * 2
    assert times["matrix products"] == pytest.approx(products / 312e12)
    assert times["attention"] == pytest.approx(3.5 * 4 * tokens * 2048 * 4096 * 32 * 2 / 312e12)
    assert times["recomputation"] == times["exchange between servers"] == times["40 GB cards"] == 0
    assert times["exchange within a server"] == pytest.approx(6 * 6.66e9 * 7 / 8 / 300e9 * 2, rel=0.01)


@pytest.mark.parametrize("row", ROWS[::9])
def test_twice_the_micro_batches_are_twice_the_work_but_for_the_optimizer(row) -> None:
    once, twice = (at_spec(_with(row, accumulation=count)) for count in (row.accumulation, 2 * row.accumulation))
    names = [term.name for term in TERMS]
    optimizer = names.index("optimizer")
    assert twice[optimizer] == once[optimizer]
    rest = np.delete(np.array([once, twice]), optimizer, axis=1)
    assert rest[1] == pytest.approx(2 * rest[0])


def _with(row, **changes):
    return replace(row, **changes)

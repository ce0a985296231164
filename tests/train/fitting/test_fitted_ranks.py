"""`stoker.train.fit` of a replicated model: one plan for all ranks, which share the states of its optimizer."""

from __future__ import annotations

import json
import os
import sys

import pytest

from tests.train.fitting.programs.fitted_ranks import BUDGET
from tests.warm import programs

pytestmark = pytest.mark.integration


@pytest.mark.slow("two ranks train twice")
def test_ranks_share_states_with_equal_losses() -> None:
    done = programs.run(
        [sys.executable, "-m", "tests.train.fitting.programs.fitted_ranks"], capture_output=True, text=True,
        timeout=110, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    for each in found:
        plain, fitted = each["plain"], each["fitted"]
        assert fitted["losses"] == plain["losses"]
        assert fitted["kinds"][0] == "zero1"
        assert plain["peak"] > BUDGET >= fitted["peak"]
        assert fitted["peak"] == pytest.approx(fitted["predicted"], rel=0.03)
        assert fitted["own"] < plain["own"] == fitted["undone"]
    assert found[0]["fitted"]["saved"] == found[0]["plain"]["saved"]
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("stoker: fit of ")]
    assert "ZeRO-1 over 2 ranks" in line

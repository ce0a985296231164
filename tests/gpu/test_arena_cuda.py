"""Eager CUDA in a planned arena: equal losses, fewer bytes held, deviations counted. Needs one GPU and g++."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(240)]
PROGRAM = Path(__file__).parent / "programs/arena_program.py"
STEPS = 12


def trained(form: str, short: int = -1) -> dict[str, Any]:
    """What the program prints, in a process of its own: an allocator is chosen before CUDA is in use."""
    done = subprocess.run(
        [sys.executable, str(PROGRAM), form, str(STEPS), str(short)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_steps_go_by_the_plan() -> None:
    plain, planned = trained("plain"), trained("planned")
    assert planned["losses"] == plain["losses"]
    assert not planned["problem"]
    assert planned["steps"] == STEPS
    assert planned["planned"] > 200 * (STEPS - 2)
    assert planned["unexpected"] == planned["occupied"] == planned["left_out"] == 0
    assert planned["arena_bytes"] <= 1.03 * planned["bound_bytes"]
    # Of what the whole step holds: no more than torch's allocator reserves.
    assert planned["reserved_bytes"] <= plain["reserved"]


def test_another_batch_gets_ordinary_blocks() -> None:
    plain, planned = trained("plain", STEPS - 3), trained("planned", STEPS - 3)
    assert planned["losses"] == plain["losses"]
    assert planned["unexpected"] + planned["occupied"] > 20
    # The steps behind it go by the plan again.
    assert planned["planned"] > 200 * (STEPS - 3)

"""A torch that lacks a private name that stoker needs: the program ends as under plain python, with one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parent / "programs" / "lacking.py"
UNSERVED = "running without stoker"
WHOLE = "the steps of this"
LACKING = {
    "run:torch._nested_view_from_buffer": UNSERVED,
    "run:torch.utils.data._utils.collate.collate_tensor_fn": UNSERVED,  # looked up in data workers alone
    "run:torch._C._len_torch_function_stack": WHOLE,  # when the cut is imported
    "run:torch.utils._device.CURRENT_DEVICE": WHOLE,  # at the first step
    "profile:torch._C._autograd.DeviceType": UNSERVED,
}
"""Of each table that programs meet some: command and name, and what the line says of the consequence."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, PROGRAM, *LACKING],
        cwd=tmp_path_factory.mktemp("lacking"),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(("", *LACKING), json.loads(done.stdout), strict=True))


@pytest.mark.slow("the first waits for the programs of all")
@pytest.mark.integration
@pytest.mark.parametrize("name", LACKING)
def test_the_program_goes_on(name: str, runs: dict[str, dict[str, Any]]) -> None:
    plain, found = runs[""], runs[name]
    assert plain["lines"] == []
    assert (found["status"], found["losses"]) == (0, plain["losses"])
    (line,) = found["lines"]
    assert name.rpartition(".")[2] in line
    assert LACKING[name] in line

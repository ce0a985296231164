"""`stoker run --versus-plain N program`: the program's output is plain python's, and the report states the ratio."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.warm import programs

PROGRAM = Path(__file__).parent / "programs" / "sleepy.py"
STOKER = ("-m", "stoker")


def python(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *map(str, words)]
    return programs.run(command, cwd=cwd, capture_output=True, text=True, timeout=60, check=True)


@pytest.mark.integration
@pytest.mark.timeout(120)
@pytest.mark.slow("five rounds of either side are timed")
def test_a_loader_that_gains_says_so_and_gets_plain_pythons_batches(tmp_path: Path) -> None:
    plain = python(PROGRAM, cwd=tmp_path)
    compared = python(
        *STOKER, "run", "--versus-plain", "200", "--max-workers", "4", "--run-dir", "run", PROGRAM, cwd=tmp_path
    )
    assert compared.stdout == plain.stdout
    found: dict[str, Any] = json.loads(python(*STOKER, "report", "--json", "run", cwd=tmp_path).stdout)["loaders"][0]
    assert found["versus"]["ratio"] > 1.3
    assert found["versus"]["plain"]["workers_to"] == 1 < found["versus"]["ours"]["workers_to"]
    ratio = f"{found['versus']['ratio']:.2f}x plain python"
    assert re.search(rf"^Versus      {ratio}", compared.stderr, re.MULTILINE), compared.stderr
    assert ratio in python(*STOKER, "report", "--html", "-", "run", cwd=tmp_path).stdout
    rounds = found["versus"]["rounds"]
    assert len(rounds) == found["versus"]["pairs"] == 5
    assert found["batches"] == 216 - 6 * 16  # torch's rounds are no part of what is said of ours


@pytest.mark.integration
def test_too_few_batches_are_refused(tmp_path: Path) -> None:
    command = [sys.executable, *STOKER, "run", "--versus-plain", "50", str(PROGRAM)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "`versus-plain` must be a whole number of batches of at least 120" in done.stderr

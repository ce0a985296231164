"""Warnings under `stoker run`: of the same places as under plain python, so that a program's filters hold."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.warm import programs

PROGRAM = Path(__file__).parent / "programs" / "warning.py"


def lines_of(folder: Path, *before: str) -> list[tuple[str, str]]:
    """What the program prints, each line with the heading above it."""
    command = [sys.executable, *before, str(PROGRAM)]
    done = programs.run(command, cwd=folder, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    heading, lines = "", list[tuple[str, str]]()
    for line in done.stdout.splitlines():
        if line.startswith(("program ", "worker ", "enumerate(")):
            lines.append((heading, line))
        else:
            heading = line
    return lines


@pytest.mark.slow("the same program twice, under a profiler")
@pytest.mark.integration
def test_warnings_and_profiles_are_those_of_plain_python(tmp_path: Path) -> None:
    plain = lines_of(tmp_path)
    served = lines_of(tmp_path, "-m", "stoker", "run", "--quiet", "--run-dir", "run")
    # Workers (their number is stoker's to choose) and moved calls may repeat a warning more or less often.
    assert set(served) == set(plain)
    assert ("filtered", "pin_memory") not in {(heading, line.partition("'")[2][:10]) for heading, line in served}

    def in_program(lines: list[tuple[str, str]]) -> Counter[tuple[str, str]]:
        return Counter(
            row for row in lines if row[1].startswith("program ") and row[0] not in ("in the loop", "filtered")
        )

    assert in_program(served) == in_program(plain)
    assert sum(in_program(plain).values()) > 20
    assert {line.rpartition(" ")[0] for heading, line in served if heading == "profiled"} == {
        f"enumerate(DataLoader)#_{kind}DataLoaderIter.__next__" for kind in ("SingleProcess", "MultiProcessing")
    }

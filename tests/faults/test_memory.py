"""Large batches under a memory limit: no more memory than under plain python, the same batches, and no blame."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.support.memory_group import Outcome, obstacle, run_limited

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

PROGRAM = Path(__file__).parent / "programs" / "large.py"
STOKER = Path(sys.executable).parent / "stoker"
MIB = 1 << 20


@pytest.fixture(scope="module", autouse=True)
def cgroups() -> None:
    if why := obstacle():
        pytest.skip(why)


def python(*arguments: object, limit_bytes: int = 0, folder: Path | None = None) -> Outcome:
    return run_limited([sys.executable, str(PROGRAM), *map(str, arguments)], limit_bytes, folder=folder)


def stoker(*arguments: object, limit_bytes: int = 0, folder: Path, options: tuple[str, ...] = ()) -> Outcome:
    command = [str(STOKER), "run", *options, str(PROGRAM), *map(str, arguments)]
    return run_limited(command, limit_bytes, folder=folder)


@pytest.mark.slow("samples of hundreds of megabytes")
@pytest.mark.parametrize("kind", ["plain", "random"])
def test_samples_too_large_to_compare_come_as_from_torch_within_its_memory(kind: str, tmp_path: Path) -> None:
    """Random samples too: workers that drew by the elastic tier's seeds begin anew with torch's."""
    arguments = (80_000_000, 10, kind)
    stoker(80_000_000, 2, kind, folder=tmp_path)  # files are read once before memory is counted
    alone = python(*arguments)
    found = stoker(*arguments, limit_bytes=int(1.2 * alone.peak_bytes), folder=tmp_path)
    assert found.status == 0, found.errors
    assert found.output == alone.output
    assert "too large to be made again for a comparison" in " ".join(found.errors.split())
    assert found.peak_bytes <= 1.15 * alone.peak_bytes


@pytest.mark.slow("fills memory up to a limit")
def test_a_worker_killed_for_memory_blames_no_sample_and_costs_none(tmp_path: Path) -> None:
    """Four samples at a time are too much, one is not: plain python dies of it."""
    arguments, limit_bytes = (4_000, 24, "heavy"), 750 * MIB
    assert python(*arguments, limit_bytes=limit_bytes).status != 0
    found = stoker(*arguments, limit_bytes=limit_bytes, folder=tmp_path, options=("--on-bad-sample", "skip"))
    assert found.status == 0, found.errors
    assert [line.split()[0] for line in found.output.splitlines()] == [f"{i}.0" for i in range(24)]
    assert "killed by the kernel for lack of memory, limit 750 MiB" in found.errors


def test_too_little_for_one_batch_is_said(tmp_path: Path) -> None:
    found = stoker(4_000, 8, "heavy", limit_bytes=330 * MIB, folder=tmp_path)
    assert found.status == 1
    assert "each at a single batch with no other at work; raise the limit" in found.errors

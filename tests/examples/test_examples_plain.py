"""The examples under plain python: the same seed prints the same losses, whatever the number of workers."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
LOSS = re.compile(r"^((?:step|epoch) \d+ (?:validation )?loss \S+)", re.MULTILINE)
NEEDS = {"images": "sklearn", "tabular_recommender": "pyarrow"}

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(120),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the examples need torch"),
]


def start(example: str, work_dir: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(EXAMPLES / example / "train.py"), "--quick", *options]
    if example != "text":
        command += ["--work-dir", str(work_dir)]
    # One thread each: two runs side by side with as many threads as cores wait for each other most of the time.
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def losses(process: subprocess.Popen[str]) -> list[str]:
    """The lines with losses that the example printed; fails with its errors if it failed."""
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert "Traceback" not in err
    assert re.search(r"\d+ steps, \d+ \w+ in [\d.]+ s of training", out), out
    lines = LOSS.findall(out)
    assert sum(line.startswith("step") for line in lines) >= 6
    return lines


def run_pair(example: str, work_dir: Path, first: list[str], second: list[str]) -> tuple[list[str], list[str]]:
    """The losses of two runs side by side; started together, they also race for making the data."""
    if example in NEEDS:
        pytest.importorskip(NEEDS[example])
    one, two = start(example, work_dir, *first), start(example, work_dir, *second)
    try:
        return losses(one), losses(two)
    finally:
        for process in (one, two):
            process.kill()
            process.wait()


@pytest.mark.parametrize("example", ["images", "tabular_recommender", "text", "iterable"])
def test_same_seed_prints_same_losses(example: str, tmp_path: Path) -> None:
    first, second = run_pair(example, tmp_path, [], [])

    assert first == second


@pytest.mark.parametrize(
    ("example", "options"),
    [("images", ["--deterministic"]), ("tabular_recommender", []), ("text", [])],
)
def test_losses_do_not_depend_on_workers(example: str, options: list[str], tmp_path: Path) -> None:
    without, with_two = run_pair(example, tmp_path, [*options, "--workers", "0"], [*options, "--workers", "2"])

    assert without == with_two


def test_unshuffled_stream_is_equal_without_and_with_one_worker(tmp_path: Path) -> None:
    options = ["--deterministic", "--workers"]
    without, with_one = run_pair("iterable", tmp_path, [*options, "0"], [*options, "1"])

    assert without == with_one


def test_emulated_accelerator_is_called_so(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    process = start("images", tmp_path, "--accelerator", "emulated", "--step-ms", "1", "--workers", "0")
    out, err = process.communicate()

    assert process.returncode == 0, err
    assert "accelerator: emulated, each step sleeps 1 ms" in out


@pytest.mark.parametrize("path", sorted(EXAMPLES.rglob("*.py")), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_example_does_not_import_stoker(path: Path) -> None:
    assert not re.search(r"^\s*(import|from)\s+stoker", path.read_text(), re.MULTILINE)

"""The examples under plain python: the same seed prints the same losses, whatever the number of workers."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SEVERAL = Path(__file__).with_name("several.py")
LOSS = re.compile(r"^((?:step|epoch) \d+ (?:validation )?loss \S+)", re.MULTILINE)
NEEDS = {"images": "sklearn", "tabular_recommender": "pyarrow"}
EMULATED = ["--accelerator", "emulated", "--step-ms", "1", "--workers", "0"]
RUNS: dict[str, tuple[dict[str, list[str]], dict[str, list[str]]]] = {
    # What each of two processes runs in turn.
    "images": (
        {"same": [], "workers": ["--deterministic", "--workers", "0"], "emulated": EMULATED},
        {"same": [], "workers": ["--deterministic", "--workers", "2"]},
    ),
    "tabular_recommender": ({"same": [], "workers": ["--workers", "0"]}, {"same": [], "workers": ["--workers", "2"]}),
    "text": ({"same": [], "workers": ["--workers", "0"]}, {"same": [], "workers": ["--workers", "2"]}),
    "iterable": (
        {"same": [], "workers": ["--deterministic", "--workers", "0"]},
        {"same": [], "workers": ["--deterministic", "--workers", "1"]},
    ),
}

Outputs = tuple[dict[str, str], dict[str, str]]
pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(250),  # the first test of an example waits for all its runs
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the examples need torch"),
]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Outputs]:
    """What the runs of an example print in either process."""

    @functools.cache
    def find(example: str) -> Outputs:
        if example in NEEDS:
            pytest.importorskip(NEEDS[example])
        # Side by side: started together, they also race for making the data.
        one, two = [start(example, tmp_path_factory.getbasetemp() / example, runs) for runs in RUNS[example]]
        try:
            return sections(one), sections(two)
        finally:
            for process in (one, two):
                process.kill()
                process.wait()

    return find


def start(example: str, work_dir: Path, runs: dict[str, list[str]]) -> subprocess.Popen[str]:
    place = [] if example == "text" else ["--work-dir", str(work_dir)]
    listed = [(name, ["--quick", *place, *options], None) for name, options in runs.items()]
    command = [sys.executable, str(SEVERAL), str(EXAMPLES / example / "train.py"), json.dumps(listed)]
    # One thread each: two runs side by side with as many threads as cores wait for each other most of the time.
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def sections(process: subprocess.Popen[str]) -> dict[str, str]:
    """What a process printed, by run; fails with its errors if it failed."""
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert "Traceback" not in err
    return {name: text for name, _, text in (part.partition("\n") for part in out.split("== ")[1:])}


def losses(out: str) -> list[str]:
    """The lines with losses that a run printed."""
    assert re.search(r"\d+ steps, \d+ \w+ in [\d.]+ s of training", out), out
    lines = LOSS.findall(out)
    assert sum(line.startswith("step") for line in lines) >= 6
    return lines


@pytest.mark.parametrize("example", RUNS)
def test_same_seed_prints_same_losses(example: str, pair: Callable[[str], Outputs]) -> None:
    first, second = pair(example)

    assert losses(first["same"]) == losses(second["same"])


@pytest.mark.parametrize("example", RUNS)
def test_losses_do_not_depend_on_workers(example: str, pair: Callable[[str], Outputs]) -> None:
    """None and two; of the stream, whose order several workers change, none and one, unshuffled."""
    without, with_some = pair(example)

    assert losses(without["workers"]) == losses(with_some["workers"])


def test_emulated_accelerator_is_called_so(pair: Callable[[str], Outputs]) -> None:
    assert "accelerator: emulated, each step sleeps 1 ms" in pair("images")[0]["emulated"]


@pytest.mark.parametrize("path", sorted(EXAMPLES.rglob("*.py")), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_example_does_not_import_stoker(path: Path) -> None:
    assert not re.search(r"^\s*(import|from)\s+stoker", path.read_text(), re.MULTILINE)

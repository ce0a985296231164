"""The examples, plain and under `stoker run`: the same losses for any number of workers, whatever happens to them."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import stoker
from stoker.records.events import LoaderOpened, SampleQuarantined, WorkerLost
from stoker.records.runlog import Run, read_run
from tests.faults.harness import workers_below
from tests.warm import programs

EXAMPLES = Path(__file__).parents[2] / "examples"
SEVERAL = Path(__file__).with_name("several.py")
SOURCE = str(Path(stoker.__file__).parents[1])
LOSS = re.compile(r"^((?:step|epoch) \d+ (?:validation )?loss \S+)", re.MULTILINE)
NEEDS = {"images": "sklearn", "tabular_recommender": "pyarrow"}
# Small on purpose: most of a run is the import of torch.
SIZES = {
    "images": ["--quick", "--steps", "12", "--batch-size", "8", "--images", "160"],
    "tabular_recommender": ["--quick", "--steps", "3", "--rows", "8192"],
    "text": ["--quick", "--steps", "3", "--files", "8", "--batch-size", "4"],
    "iterable": ["--quick", "--steps", "8"],
}
SAME = {"images": ["--deterministic"], "tabular_recommender": [], "text": [], "iterable": []}
"""Options with which stoker changes nothing, not even with another number of data workers."""
ALONE = SAME | {"iterable": ["--deterministic"]}
"""Options with which torch changes nothing: several workers each shuffle a stream by themselves."""
EMULATED = ["--accelerator", "emulated", "--step-ms", "1", "--workers", "0"]
COUNTS = (0, 1, 2, 5)
"""Data workers of the runs in one process; `stoker run` chooses their number itself."""

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(250),
    pytest.mark.slow("the first test of an example waits for all its runs; a stalled worker is waited for"),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the examples need torch"),
]


@dataclass(frozen=True)
class Outcome:
    """The losses of an example's runs, in two processes side by side."""

    plain: list[str]
    alone: tuple[list[str], list[str]]
    """Plain python's without data workers, and with some."""
    by_count: dict[int, list[str]]
    itself: list[str]
    """Under `stoker run`, which chooses the number of data workers."""
    random_by_count: dict[int, list[str]]
    """With the random transforms that the example has."""
    random_itself: list[str]
    tiers: list[set[tuple[int, str]]]
    """Of each process or block that was served: declared workers and tier of its loaders."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the examples keep the data that the first of them makes."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def outcome(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Outcome]:
    """What an example gives plain, with each number of data workers, and under `stoker run`; found once."""

    @functools.cache
    def find(example: str) -> Outcome:
        folder = tmp_path_factory.mktemp(example)
        path, *words = program(example, data)
        same, varied = [*words, *SAME[example]], words if SAME[example] else None
        one: list[tuple[str, list[str], dict[str, object] | None]] = [("plain", same, None)]
        one += [(f"alone {count}", [*words, *ALONE[example], "--workers", count], None) for count in ("0", "1")]
        other: list[tuple[str, list[str], None]] = [("itself", same, None)]
        if varied is not None:
            other.append(("varied itself", varied, None))
        for count in COUNTS:
            name = f"varied {count}" if varied is not None else str(count)
            one.append((name, varied or same, {"workers": count, "run_dir": str(folder / name)}))
        commands = [
            [sys.executable, str(SEVERAL), path, json.dumps(one)],
            [sys.executable, *run_options(folder / "itself"), str(SEVERAL), path, json.dumps(other)],
        ]
        with ThreadPoolExecutor(2) as threads:
            found = sections("".join(threads.map(lambda command: printed(command, folder), commands)))
        recorded = [set(tiers(read_run(at))) for at in folder.iterdir() if at.is_dir()]
        assert len(recorded) == 1 + len(COUNTS)
        return Outcome(
            plain=found["plain"],
            alone=(found["alone 0"], found["alone 1"]),
            by_count={count: found[str(count)] for count in COUNTS if str(count) in found},
            itself=found["itself"],
            random_by_count={count: found.get(f"varied {count}", []) for count in COUNTS},
            random_itself=found.get("varied itself", []),
            tiers=recorded,
        )

    return find


def program(example: str, data: Path) -> list[str]:
    """An example and its arguments."""
    if example in NEEDS:
        pytest.importorskip(NEEDS[example])
    place = [] if example == "text" else ["--work-dir", str(data / example)]
    return [str(EXAMPLES / example / "train.py"), *SIZES[example], *place]


def run_options(run_dir: Path, *options: str) -> list[str]:
    """The words of `stoker run`."""
    return ["-m", "stoker", "run", "--quiet", "--run-dir", str(run_dir), *options]


def environment() -> dict[str, str]:
    """One thread each: runs side by side with as many threads as cores wait for each other most of the time."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": SOURCE, "PYTHONDONTWRITEBYTECODE": "1"}


def printed(
    words: list[str],
    cwd: Path,
    at_line: Callable[[int, str], None] = lambda pid, line: None,
    start: type[subprocess.Popen[Any]] = programs.Program,
) -> str:
    """What a command prints, if it succeeds; ``at_line`` is called with each line as it comes."""
    with (
        open(cwd / f"errors-{random.getrandbits(40)}", "w+") as errors,
        start(words, env=environment(), cwd=cwd, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        assert process.stdout is not None
        lines: list[str] = []
        try:
            for line in process.stdout:
                lines.append(line)
                at_line(process.pid, line)
        except BaseException:
            process.kill()
            raise
        process.wait()
        errors.seek(0)
        said = errors.read()
    assert process.returncode == 0, said
    assert "Traceback" not in said, said
    return "".join(lines)


def losses(out: str) -> list[str]:
    """The lines with losses of a run."""
    found = LOSS.findall(out)
    assert sum(line.startswith("step") for line in found) >= 3
    return found


def sections(out: str) -> dict[str, list[str]]:
    """The losses of several runs, by name."""
    parts = (part.partition("\n") for part in out.split("== ")[1:])
    return {name: losses(text) for name, _, text in parts}


def tiers(run: Run) -> list[tuple[int, str]]:
    """Declared workers and tier of each loader."""
    last = {event.loader: event for event in run.events if isinstance(event, LoaderOpened)}
    return [(event.declared_workers, event.tier) for event in last.values()]


@pytest.mark.parametrize("example", SAME)
def test_losses_are_those_of_plain_python(example: str, outcome: Callable[[str], Outcome]) -> None:
    """Deterministic transforms, and the pinned stream with its shuffle buffer, for any number of data workers."""
    found = outcome(example)
    assert found.itself == found.plain
    counts = () if SAME[example] else COUNTS  # where there are random transforms the counts are compared with those
    assert found.by_count == dict.fromkeys(counts, found.plain)
    assert found.tiers == [{(2, "pinned" if example == "iterable" else "elastic")}] * (1 + len(COUNTS))


@pytest.mark.parametrize("example", SAME)
def test_plain_losses_do_not_depend_on_workers(example: str, outcome: Callable[[str], Outcome]) -> None:
    without, with_one = outcome(example).alone
    assert without == with_one


def test_random_transforms_do_not_depend_on_the_number_of_workers(outcome: Callable[[str], Outcome]) -> None:
    found = outcome("images")
    assert found.random_itself != found.itself
    assert found.random_by_count == dict.fromkeys(COUNTS, found.random_itself)


@pytest.mark.parametrize("example", ["images", "iterable"])
def test_losses_do_not_depend_on_what_happens_to_workers(
    example: str, outcome: Callable[[str], Outcome], data: Path, tmp_path: Path
) -> None:
    """Random ones are killed, or stopped, while they decode random crops or read a shuffled stream."""
    chance = random.Random(5)
    struck: dict[signal.Signals, list[int]] = {signal.SIGKILL: [], signal.SIGSTOP: []}

    def strike(pid: int, line: str) -> None:
        stopped = set(struck[signal.SIGSTOP])
        if (step := re.match(r"step ([1-4]) ", line)) and (workers := set(workers_below(pid)) - stopped):
            number = signal.SIGSTOP if step[1] in "13" else signal.SIGKILL
            worker = chance.choice(sorted(workers))
            with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
                os.kill(worker, number)
                struck[number].append(worker)

    stormy = run_options(tmp_path / "stormy", "--workers", "3", "--stall-timeout", "2s")
    start = subprocess.Popen if example == "iterable" else programs.Program  # one as people start it
    found = losses(printed([sys.executable, *stormy, *program(example, data)], tmp_path, strike, start))
    expected = outcome(example)
    assert found == (expected.random_itself or expected.itself)
    run = read_run(tmp_path / "stormy")
    lost = {event.pid: event.cause for event in run.events if isinstance(event, WorkerLost)}
    for number, pids in struck.items():
        assert any(number.name in lost.get(pid, "") for pid in pids), (struck, lost)
    assert not [event for event in run.events if isinstance(event, SampleQuarantined)]


def test_emulated_accelerator_is_called_so(data: Path, tmp_path: Path) -> None:
    out = printed([sys.executable, *program("images", data), *EMULATED], tmp_path)
    assert "accelerator: emulated, each step sleeps 1 ms" in out
    assert re.search(r"\d+ steps, \d+ \w+ in [\d.]+ s of training", out), out


@pytest.mark.parametrize("path", sorted(EXAMPLES.rglob("*.py")), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_example_does_not_import_stoker(path: Path) -> None:
    assert not re.search(r"^\s*(import|from)\s+stoker", path.read_text(), re.MULTILINE)

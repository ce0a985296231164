"""The examples under `stoker run`: the same losses for any number of data workers, and whatever happens to them."""

from __future__ import annotations

import functools
import importlib.util
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import stoker
from stoker.core.events import LoaderOpened, SampleQuarantined, WorkerLost
from stoker.core.runlog import Run, read_run

EXAMPLES = Path(__file__).parents[2] / "examples"
SOURCE = str(Path(stoker.__file__).parents[1])
LOSS = re.compile(r"^((?:step|epoch) \d+ (?:validation )?loss \S+)", re.MULTILINE)
NEEDS = {"images": "sklearn", "tabular_recommender": "pyarrow"}
# Small on purpose: most of a run is the import of torch.
SIZES = {
    "images": ["--quick", "--steps", "8", "--batch-size", "8", "--images", "80"],
    "tabular_recommender": ["--quick", "--steps", "3"],
    "text": ["--quick", "--steps", "3", "--files", "8", "--batch-size", "4"],
    "iterable": ["--quick", "--steps", "8"],
}
COUNTS = ["0", "1", "2", "5", "auto"]

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(120),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the examples need torch"),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the examples keep the data that the first of them makes."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], list[str]]:
    """The losses of an example under `stoker run` that nothing happens to."""
    folder = tmp_path_factory.mktemp("undisturbed")

    @functools.cache
    def find(example: str) -> list[str]:
        return losses(command(example, data, stoker_options=["--workers", "3"]), folder)

    return find


def command(example: str, data: Path, *options: str, stoker_options: Sequence[str] | None = None) -> list[str]:
    """The command line of an example: plain, or under `stoker run` with these options."""
    if example in NEEDS:
        pytest.importorskip(NEEDS[example])
    before = [] if stoker_options is None else ["-m", "stoker", "run", "--quiet", *stoker_options]
    place = [] if example == "text" else ["--work-dir", str(data / example)]
    return [sys.executable, *before, str(EXAMPLES / example / "train.py"), *SIZES[example], *place, *options]


def environment() -> dict[str, str]:
    """One thread each: runs side by side with as many threads as cores wait for each other most of the time."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": SOURCE, "PYTHONDONTWRITEBYTECODE": "1"}


def losses(words: list[str], cwd: Path, at_line: Callable[[int, str], None] = lambda pid, line: None) -> list[str]:
    """The lines with losses that a command prints; ``at_line`` is called with each line as it comes."""
    with (
        open(cwd / f"errors-{random.getrandbits(40)}", "w+") as errors,
        subprocess.Popen(
            words, env=environment(), cwd=cwd, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
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
    found = LOSS.findall("".join(lines))
    assert sum(line.startswith("step") for line in found) >= 3
    return found


def all_losses(commands: list[list[str]], cwd: Path) -> list[list[str]]:
    """The losses of several runs, two at a time."""
    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(lambda words: losses(words, cwd), commands))


def tiers(run: Run) -> list[tuple[int, str]]:
    """Declared workers and tier of each loader."""
    last = {event.loader: event for event in run.events if isinstance(event, LoaderOpened)}
    return [(event.declared_workers, event.tier) for event in last.values()]


@pytest.mark.parametrize(
    ("example", "options", "tier", "counts"),
    [
        ("images", ["--deterministic"], "elastic", ["auto"]),  # the counts have their own test, on random crops
        ("tabular_recommender", [], "elastic", COUNTS),
        ("text", [], "elastic", COUNTS),
        ("iterable", [], "pinned", COUNTS[:-1]),
    ],
)
def test_losses_are_those_of_plain_python(
    example: str, options: list[str], tier: str, counts: list[str], data: Path, tmp_path: Path
) -> None:
    """Deterministic transforms, and the pinned stream with its shuffle buffer, for any number of data workers."""
    commands = [command(example, data, *options)]
    for count in counts:
        stoker_options = ["--workers", count, "--run-dir", str(tmp_path / count)]
        commands.append(command(example, data, *options, stoker_options=stoker_options))
    plain, *served = all_losses(commands, tmp_path)
    for count, found in zip(counts, served, strict=True):
        assert found == plain, f"--workers {count}"
        assert set(tiers(read_run(tmp_path / count))) == {(2, tier)}


def test_random_transforms_do_not_depend_on_the_number_of_workers(data: Path, tmp_path: Path) -> None:
    commands = []
    for count in COUNTS:
        stoker_options = ["--workers", count, "--run-dir", str(tmp_path / count)]
        commands.append(command("images", data, stoker_options=stoker_options))
    first, *others = all_losses(commands, tmp_path)
    for count, found in zip(COUNTS[1:], others, strict=True):
        assert found == first, f"--workers {count}"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda number: number.name)
@pytest.mark.parametrize("example", ["images", "iterable"])
def test_losses_do_not_depend_on_what_happens_to_workers(
    example: str, number: signal.Signals, undisturbed: Callable[[str], list[str]], data: Path, tmp_path: Path
) -> None:
    """Random ones are killed, or stopped, while they decode random crops or read a shuffled stream."""
    chance = random.Random(5)
    struck: list[int] = []

    def strike(pid: int, line: str) -> None:
        if re.match(r"step [1-4] ", line) and (workers := data_workers(pid)):
            worker = chance.choice(workers)
            os.kill(worker, number)
            struck.append(worker)

    stormy = command(
        example,
        data,
        stoker_options=["--workers", "3", "--stall-timeout", "2s", "--run-dir", str(tmp_path / "stormy")],
    )
    expected = undisturbed(example)
    assert losses(stormy, tmp_path, strike) == expected
    assert struck
    run = read_run(tmp_path / "stormy")
    lost = [event for event in run.events if isinstance(event, WorkerLost)]
    assert {event.pid for event in lost} & set(struck), lost
    assert not [event for event in run.events if isinstance(event, SampleQuarantined)]


def data_workers(pid: int) -> list[int]:
    """The data workers of a process, by their name."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        for task in Path(f"/proc/{waiting.pop()}/task").glob("*"):
            for child in _read(task / "children").split():
                waiting.append(int(child))
                if _read(Path(f"/proc/{child}/comm")).strip() == "stoker_worker":
                    found.append(int(child))
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""

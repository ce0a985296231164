"""A rank is lost under each method, in all ways: the others raise in time, naming it, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import pytest

from benchmarks.support.nodes import NoNamespaces, switched
from tests.warm import programs

pytestmark = pytest.mark.integration
PROGRAM = Path(__file__).parent / "programs" / "lost_rank.py"
RANKS = 3
TIMEOUT_S = 10.0
"""Of the program's group."""
WITHIN_S = 60.0
"""For it on a machine that is busy with others."""
LATE_S = 5.0
"""For the question that follows a time-out, and for a busy machine."""
LAYERS = ("0.weight", "0.bias", "2.weight", "2.bias")


def until(is_so: Callable[[], bool]) -> None:
    ends_s = time.monotonic() + WITHIN_S
    while not is_so():
        assert time.monotonic() < ends_s
        time.sleep(0.02)


@contextmanager
def training(method: str, folder: Path, places: Sequence[tuple[str, ...]] = ((),) * RANKS) -> Iterator[list[Any]]:
    """Ranks that exchange by a method, each in its place."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(programs.ROOT)}
    running: list[Any] = []
    for rank, place in enumerate(places):
        with (folder / f"errors{rank}").open("w") as errors:
            running.append(programs.Program(
                [sys.executable, str(PROGRAM), method, str(rank), str(RANKS), str(folder), *place],
                env=env, cwd=folder, stdout=DEVNULL, stderr=errors,
            ))  # fmt: skip
    try:
        until(lambda: all((folder / f"trains{rank}").exists() for rank in range(RANKS)))
        yield running
    finally:
        for process in running:
            process.kill()
            process.wait()


def ended(running: Sequence[Any], folder: Path, ranks: Sequence[int]) -> list[dict[str, Any]]:
    """What the ranks say after they have raised by themselves."""
    ends = [running[rank].wait(timeout=WITHIN_S) for rank in ranks]
    assert ends == [0] * len(ranks), [(folder / f"errors{rank}").read_text() for rank in ranks]
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in ranks]


def check(found: dict[str, Any], method: str, lost: int = 1) -> None:
    """That an error names the rank, the layer and the step, and nothing is left."""
    assert found["raised"].startswith("ExchangeError"), found
    assert found["fields"]["rank"] == lost, found
    assert found["fields"]["layer"] in (("weights",) if method == "average" else LAYERS), found
    assert found["fields"]["step"] >= 12, found
    assert (found["left"], found["sockets"]) == ([], 0), found


@pytest.mark.slow("three ranks train until the time-out of their group")
@pytest.mark.timeout(240)
@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGSTOP, signal.SIGINT], ids=["killed", "stopped", "ctrl-c"])
@pytest.mark.parametrize("method", ["late", "ring", "average"])
def test_the_others_raise_and_nothing_is_left(method: str, way: signal.Signals, tmp_path: Path) -> None:
    shared = set(os.listdir("/dev/shm"))
    with training(method, tmp_path) as running:
        os.kill(running[1].pid, way)
        for each in ended(running, tmp_path, (0, 2)):
            check(each, method)
    assert set(os.listdir("/dev/shm")) <= shared


@pytest.mark.slow("three ranks train until one of them ends its process group")
@pytest.mark.timeout(240)
@pytest.mark.parametrize("method", ["late", "ring", "average"])
def test_a_rank_that_ends_its_process_group_is_named(method: str, tmp_path: Path) -> None:
    with training(method, tmp_path) as running:
        (tmp_path / "leave").touch()
        for each in ended(running, tmp_path, (0, 2)):
            check(each, method)
            assert "`rank 1` has left" in each["raised"], each
        assert running[1].poll() is None, "it goes on"


@pytest.mark.slow("three ranks train until the time-out of their group")
@pytest.mark.timeout(240)
@pytest.mark.parametrize("method", ["late", "ring", "average"])
def test_a_rank_whose_link_is_cut_is_named_within_the_time_out(method: str, tmp_path: Path) -> None:
    try:
        with switched([1000.0] * RANKS) as nodes:
            with training(method, tmp_path, [(node.name, node.inner) for node in nodes]) as running:
                nodes[1].cut()
                cut_s = time.monotonic()
                found = ended(running, tmp_path, range(RANKS))
            for rank in (0, 2):
                check(found[rank], method)
                assert found[rank]["at_s"] - cut_s < TIMEOUT_S + LATE_S, found
            # The one that was cut off sees all others gone, and ends as well.
            check(found[1], method, lost=found[1]["fields"]["rank"])
            assert found[1]["fields"]["rank"] in (0, 2)
    except NoNamespaces as error:
        pytest.skip(f"no network namespaces here: {error}")

"""A rank is killed, stopped or interrupted under each method: the others raise in time, and nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

import pytest

from tests.warm import programs

pytestmark = pytest.mark.integration
PROGRAM = Path(__file__).parent / "programs" / "lost_rank.py"
RANKS = 3
WITHIN_S = 60.0
"""For the group's 10 s on a machine that is busy with others."""


def until(is_so: Callable[[], bool]) -> None:
    ends_s = time.monotonic() + WITHIN_S
    while not is_so():
        assert time.monotonic() < ends_s
        time.sleep(0.02)


@pytest.mark.slow("three ranks train until the time-out of their group")
@pytest.mark.timeout(240)
@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGSTOP, signal.SIGINT], ids=["killed", "stopped", "ctrl-c"])
@pytest.mark.parametrize("method", ["late", "ring", "average"])
def test_the_others_raise_and_nothing_is_left(method: str, way: signal.Signals, tmp_path: Path) -> None:
    shared = set(os.listdir("/dev/shm"))
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(programs.ROOT)}
    running = [
        programs.Program(
            [sys.executable, str(PROGRAM), method, str(rank), str(RANKS), str(tmp_path)],
            env=env, cwd=tmp_path, stdout=DEVNULL, stderr=DEVNULL,
        )
        for rank in range(RANKS)
    ]  # fmt: skip
    try:
        until(lambda: all((tmp_path / f"trains{rank}").exists() for rank in range(RANKS)))
        os.kill(running[1].pid, way)
        others = [running[0], running[2]]
        assert [process.wait(timeout=WITHIN_S) for process in others] == [0, 0]
    finally:
        for process in running:
            process.kill()
            process.wait()
    found: list[dict[str, Any]] = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 2)]
    for each in found:
        assert each["raised"], each
        assert not each["left"], each
        if method != "average":
            assert each["fields"]["layer"] in ("0.weight", "0.bias", "2.weight", "2.bias"), each
            assert each["fields"]["step"] >= 12, each
        assert each["fields"].get("rank", 1) == 1, each
    assert set(os.listdir("/dev/shm")) <= shared

"""The cut under other ways of serving, in several ranks, and where a program ends in the middle of a step."""

from __future__ import annotations

import importlib.util
import signal
from pathlib import Path

import pytest

from .harness import ALWAYS, both

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(100),
    pytest.mark.slow("several programs, long enough for a cut to be tried and to pay"),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="these programs need torch"),
]

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def test_pinned_tier(tmp_path: Path) -> None:
    programs = ("mnist", "wordlm", "recommender", "deaths")
    found = both("several.py", *programs, cwd=tmp_path, options=(*ALWAYS, "--tier", "pinned"))
    found.check()
    assert found.served.out == found.plain.out
    for program in programs:
        assert found.moved(program) >= {"div"}
        began, complete = found.steps[program]
        assert began == complete >= 10


def test_where_it_pays(tmp_path: Path) -> None:
    """What takes 6 ms of each step is moved; of the other programs whatever the trial says, with equal results."""
    found = both("several.py", "marked", "mnist", "branches", "endings", cwd=tmp_path, options=("--cut", "exact"))
    found.check()
    assert found.served.out == found.plain.out
    assert found.moved("marked") >= {"denoise"}


def test_results_are_resized(tmp_path: Path) -> None:
    """What comes in a slot has memory of its own as soon as the program wants another size."""
    found = both("resized.py", cwd=tmp_path)
    found.check()
    assert found.served.out == found.plain.out
    assert found.plain.status == 0, found.plain.err
    assert found.moved("resized") >= {"log1p", "mul", "flip"}


def test_data_parallel_and_sharded_ranks(tmp_path: Path) -> None:
    found = both("ranks.py", cwd=tmp_path, launcher=TORCHRUN)
    found.check()
    assert sorted(found.served.out.splitlines()) == sorted(found.plain.out.splitlines())
    assert len(found.plain.out.splitlines()) == 4 * 48
    assert len(found.ranks) == 2
    for rank in (0, 1):
        assert found.moved("ranks", rank) >= {"flip"}


@pytest.mark.parametrize("how", ["raise", "interrupt"])
def test_ends_within_a_step(how: str, tmp_path: Path) -> None:
    found = both("raising.py", how, cwd=tmp_path)
    found.check()
    assert found.served.status == (1 if how == "raise" else -signal.SIGINT)
    assert found.served.out == found.plain.out
    assert len(found.plain.out.splitlines()) == 40
    assert found.served.err.splitlines()[-1] == found.plain.err.splitlines()[-1]
    assert found.served.err.count("Traceback") == found.plain.err.count("Traceback") == 1
    assert found.moved("raising") == {"float", "div", "sub"}

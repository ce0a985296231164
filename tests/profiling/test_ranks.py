"""Several ranks under torchrun, started both ways: the slow one is named, and all of them are ended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.support.nodes import NoNamespaces, machines
from tests.profiling.test_command import PROGRAMS, environ, found_in
from tests.warm import programs

__all__ = ["environ"]

pytestmark = [pytest.mark.integration, pytest.mark.slow("two ranks each start python and torch, under a profiler")]

PROFILE = ("-m", "stoker", "profile", "--no-prediction", "--warmup", "2", "--steps", "16")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.mark.parametrize(
    ("words", "slow"), [((*PROFILE, *TORCHRUN), 1), ((*TORCHRUN, *PROFILE), 0)], ids=["around", "inside"]
)
def test_the_slow_rank_is_named(words: tuple[str, ...], slow: int, environ: dict[str, str], tmp_path: Path) -> None:
    done = programs.run(
        [sys.executable, *words, str(PROGRAMS / "trains_together.py")],
        env={**environ, "SLOW_RANK": str(slow)}, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "the end" not in done.stdout
    found = found_in(tmp_path)
    assert found.gpus == 2
    assert len(found.seconds_of_ranks) == 2
    assert found.stragglers is not None
    assert found.stragglers.rank == slow
    assert found.stragglers.frequency > 0.75, "the other may be without a core for a step"
    assert found.stragglers.part == "host"
    assert found.verdict is not None
    assert found.verdict.kind == "STRAGGLER"
    assert f"rank {slow}" in found.verdict.text
    gain = found.verdict.action.gain
    assert gain is not None
    assert 0.04 <= found.stragglers.excess_s <= 0.2, "it rests for 50 ms"
    assert done.stderr.count("STRAGGLER") == 1, "one rank speaks for all"


@pytest.mark.timeout(240)
def test_where_the_exchange_limits_comm_auto_is_advised_with_its_gain(environ: dict[str, str], tmp_path: Path) -> None:
    """Two ranks over a loopback of 1 Gbit/s, in a network of their own."""
    try:
        with machines([1000.0]) as (node,):
            shaped = ["root", "tbf", "rate", "1gbit", "burst", "131072", "latency", "100ms"]
            subprocess.run([*node.inside, "tc", "qdisc", "add", "dev", "lo", *shaped], check=True)
            # The machine's name, and those who know names, are out of that network.
            alone = {"GLOO_SOCKET_IFNAME": "lo", "RES_OPTIONS": "timeout:1 attempts:1"}
            words = ("-m", "stoker", "profile", "--warmup", "2", "--steps", "8", *TORCHRUN, "--local-addr", "127.0.0.1")
            done = subprocess.run(
                [*node.inside, sys.executable, *words, str(PROGRAMS / "trains_wide.py")],
                env={**environ, **alone}, cwd=tmp_path, capture_output=True, text=True, timeout=200,
                check=False,
            )  # fmt: skip
    except NoNamespaces as error:
        pytest.skip(f"no network namespaces here: {error}")
    assert done.returncode == 0, done.stderr
    found = found_in(tmp_path)
    assert found.verdict is not None
    assert found.verdict.kind == "COMMUNICATION-BOUND", found.verdict
    action = found.verdict.action
    assert action.command.startswith("stoker run --comm auto "), action
    assert action.command.endswith("trains_wide.py")
    assert action.gain is not None
    assert "spare 9" in action.gain.basis, "of the wide layer's bytes, nearly all"
    shown = " ".join(done.stderr.split())
    assert "exchange gradients as their layers allow, checked in each step: --comm auto" in shown
    assert "Predicted gain" in shown

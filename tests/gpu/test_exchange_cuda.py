"""The exchange of gradients that are on a GPU: two gloo ranks on one, and one rank of NCCL. The same ranks on CPUs."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
ROOT = Path(__file__).parents[2]
EXACT = ("all_reduce", "late", "rows", "aside", "halves", "ring", "planned")
COMPRESSED = ("half", "power")
BOTH = [pytest.param("cuda", marks=pytest.mark.gpu), "cpu"]


@functools.cache
def found(device: str) -> dict[str, list[dict[str, Any]]]:
    """What all cases found on each rank; one program, whose start takes most of the time."""
    names = ("all_reduce", "late", "rows") if device == "nccl" else EXACT + COMPRESSED
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.exchanges", device, *names], capture_output=True, text=True, timeout=170,
        cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ranks = json.loads(done.stdout.splitlines()[-1])
    return {name: [rank[place] for rank in ranks] for place, name in enumerate(names)}


def apart(rank: dict[str, Any]) -> float:
    return max(abs(a - b) / abs(a) for a, b in zip(rank["plain"], rank["losses"], strict=True))


@pytest.mark.slow("two ranks train each model twice")
@pytest.mark.parametrize("device", BOTH)
@pytest.mark.parametrize("case", EXACT)
def test_losses_are_those_of_plain_ddp_and_weights_are_equal_on_both_ranks(device: str, case: str) -> None:
    ranks = found(device)[case]
    assert ranks[0]["weights"] == ranks[1]["weights"]
    for rank in ranks:
        assert apart(rank) <= (2e-3 if case == "halves" else 1e-5), rank
        assert not rank["doubts"], rank
        assert all(steps > 0 for steps in rank["steps"].values()), rank


@pytest.mark.parametrize("device", BOTH)
def test_what_no_plan_touches_is_plain_ddp_to_the_last_bit(device: str) -> None:
    assert all(rank["same"] and rank["plain"] == rank["losses"] for rank in found(device)["all_reduce"])


@pytest.mark.parametrize("device", BOTH)
@pytest.mark.parametrize("case", COMPRESSED)
def test_compressed_sums_have_the_same_weights_on_both_ranks_and_learn(device: str, case: str) -> None:
    ranks = found(device)[case]
    assert ranks[0]["weights"] == ranks[1]["weights"]
    for rank in ranks:
        assert rank["losses"] != rank["plain"]
        assert sum(rank["losses"][-5:]) < 1.2 * sum(rank["plain"][-5:])
        assert all(steps > 10 for steps in rank["steps"].values()), rank


@pytest.mark.gpu
def test_sockets_are_declined_for_tensors_of_a_gpu_and_the_backend_sums() -> None:
    for rank in found("cuda")["ring"]:
        assert rank["methods"] == {"last": "late"}
        assert "the backend makes all sums: sockets carry tensors of CPUs, and these are on cuda:0" in rank["notes"][0]


@pytest.mark.gpu
def test_the_host_waits_for_the_device_a_few_times_for_each_layer_and_no_more() -> None:
    """Of each late layer for its check and its header, of each gather for the headers of all."""
    for case in ("late", "rows"):
        for rank in found("cuda")[case]:
            assert rank["waits"] <= 8 * len(rank["methods"]) + 4, rank["waits"]


@pytest.mark.gpu
def test_one_rank_of_nccl_gathers_and_sums_on_its_streams() -> None:
    for case, (rank,) in found("nccl").items():
        assert apart(rank) <= 1e-5, (case, rank)
        assert not rank["doubts"], rank
        assert len(rank["methods"]) == {"all_reduce": 0, "late": 2, "rows": 2}[case], rank

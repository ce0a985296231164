"""`--training-workers` on GPUs of a cluster, declared and not there: ranks placed by Ray, more of them, none left."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from stoker.backends.ray.allocator.launch import Rendezvous, there
from stoker.backends.ray.clusters import MARK_ENV
from stoker.backends.ray.ranks import rank_variables
from tests.backends.ray.allocator.driver import Driver

CONTINUES = Path(__file__).parents[3] / "run" / "elastic" / "programs" / "continues.py"
PROGRAM = f"""
import os, runpy
print("placed", os.environ["RANK"], os.environ["CUDA_VISIBLE_DEVICES"], "RAY_ADDRESS" in os.environ, flush=True)
runpy.run_path({str(CONTINUES)!r}, run_name="__main__")
"""


@pytest.mark.parametrize(("nodes", "locals_"), [(["a"], [1]), (["a", "b"], [1, 1]), (["a", "b", "a"], [2, 1, 2])])
def test_ranks_know_their_place_and_see_one_gpu(nodes: Sequence[str], locals_: Sequence[int]) -> None:
    found = [rank_variables(nodes, rank, Rendezvous(host="10.0.0.1", port=29)) for rank in range(len(nodes))]
    assert [each["RANK"] for each in found] == [str(rank) for rank in range(len(nodes))]
    assert [int(each["LOCAL_WORLD_SIZE"]) for each in found] == locals_
    assert {(each["LOCAL_RANK"], each["WORLD_SIZE"], each["MASTER_ADDR"], each["MASTER_PORT"]) for each in found} == {
        ("0", str(len(nodes)), "10.0.0.1", "29")
    }


def test_gpus_and_token_are_those_of_the_node() -> None:
    user = {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "3", "RAY_AUTH_TOKEN": "other"}
    node = {"CUDA_VISIBLE_DEVICES": "0", "RAY_AUTH_TOKEN_PATH": "/t", MARK_ENV: "m", "RAY_JOB_ID": "1"}
    assert there(user, node, "head:1") == {
        "PATH": "/bin", "CUDA_VISIBLE_DEVICES": "0", "RAY_AUTH_TOKEN_PATH": "/t", MARK_ENV: "m",
        "RAY_ADDRESS": "head:1",
    }  # fmt: skip


@pytest.mark.integration
@pytest.mark.exhaustive
@pytest.mark.timeout(180)
@pytest.mark.slow("a cluster, and python and torch for each rank of two attempts")
def test_ranks_are_placed_and_become_more(driver: Driver, gpu_cluster: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    chosen = {"EVERY": "50", "STEP_S": "0.03", "BATCHES": "260", "OMP_NUM_THREADS": "1"}
    words = ("run", "--backend", "ray", "--training-workers", "1:4", "train.py")
    done = subprocess.run(
        [sys.executable, "-m", "stoker", *words], cwd=tmp_path, env=gpu_cluster | chosen, capture_output=True,
        text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout
    assert re.findall(r"placed (\d) (\S*) (\w+)", done.stdout)[0] == ("0", "0", "True")
    starts = [(int(at), int(ranks)) for at, ranks in re.findall(r"begins at (\d+) with (\d+)", done.stdout)]
    assert starts[0] == (0, 1)
    assert starts[1][1] == 2, "the cluster has two GPUs"
    assert starts[1][0] % 50 == 0 < starts[1][0]
    assert re.search(r"ends at 26\d with 2", done.stdout)
    table = "[g['name'] for g in ray.util.placement_group_table().values() if g['state'] != 'REMOVED']"
    assert not [name for name in driver(table) if name.startswith("stoker-ranks")]
    assert driver("ray.available_resources().get('GPU')") == 2.0
    # What the cluster does not have is refused, with what it has.
    refused = subprocess.run(
        [sys.executable, "-m", "stoker", "run", "--backend", "ray", "--training-workers", "3", "train.py"],
        cwd=tmp_path, env=gpu_cluster, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert refused.returncode == 2
    assert "`--training-workers` must be at most the 2 GPUs of the cluster, got 3" in refused.stderr
    assert refused.stdout == ""

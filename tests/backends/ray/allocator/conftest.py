"""A cluster of two nodes with GPUs, which are declared and not there, and a process that has joined it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.backends.ray import clusters
from tests.backends.ray.allocator.driver import Driver

SHAPE = clusters.NodeShape(cpus=4, gpus=1, object_store_bytes=clusters.LEAST_OBJECT_STORE_BYTES)


@pytest.fixture(scope="module")
def gpu_cluster() -> Iterator[dict[str, str]]:
    """The environment of a user whose cluster is up."""
    pytest.importorskip("ray", reason="needs Ray: pip install 'stoker[ray]'")
    home = Path(tempfile.mkdtemp(prefix="stoker-test-"))
    folder = home / "stoker" / "cluster"
    clusters.up(folder, 2, SHAPE)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "STOKER_"))}
    yield environ | {"XDG_STATE_HOME": str(home)}
    if clusters.read(folder) is not None:
        clusters.down(folder)
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="module")
def driver(gpu_cluster: dict[str, str]) -> Iterator[Driver]:
    """The allocator is up; two processes started it at once."""
    found, other = Driver(gpu_cluster), Driver(gpu_cluster)
    # Leases so short that tests need not wait for them; the first that starts the allocator chooses.
    start = (
        "handle = find_or_start(AllocatorConfig(exit_s=2.0, gangs=GangConfig(), "
        "ledger=LedgerConfig(lease_s=3.0, grace_s=3.0, plan_s=0.2)))"
    )
    for one in (found, other):
        one.send(start)
    for one in (found, other):
        one.receive()
    same = "ray.get(handle.pid.remote()), handle._actor_id.hex()"
    assert found(same) == other(same)
    other.close()
    yield found
    found.close()

"""CPUs that no node has: a group that waits is seen, is no claim on the nodes that are there, and takes a new one."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from stoker.backends.ray import clusters
from tests.backends.ray.allocator.driver import Driver
from tests.backends.ray.conftest import SMALL

pytestmark = [pytest.mark.integration, pytest.mark.exhaustive]


def until(holds: Callable[[], Any], timeout_s: float = 60.0) -> Any:
    end_s = time.monotonic() + timeout_s
    while not (found := holds()):
        assert time.monotonic() < end_s, "it must come in time"
        time.sleep(0.2)
    return found


@pytest.mark.slow("starts a node")
def test_a_new_node_takes_what_waits(cluster: clusters.ClusterRecord, joining_environ: dict[str, str]) -> None:
    had_ray = "ray" in sys.modules
    driver = Driver(joining_environ)
    try:
        driver(
            """
from stoker.backends.ray.nodes import NodeCpus
from stoker.backends.ray.observing import observe
from stoker.cli.cluster.status import render
cpus = NodeCpus("train-1")
known = [node.node_id for node in observe().nodes]
def states():
    return sorted(g["state"] for g in ray.util.placement_group_table().values() if g["state"] != "REMOVED")
"""
        )
        driver("cpus.wait_for(3, known)")
        until(lambda: driver("states()") == ["PENDING"] * 3)
        assert driver("render('head', observe())")[-1] == "1 job with data workers; 3 CPUs waited for"
        # The nodes that are there are full of free CPUs, which are not for these.
        driver("cpus.wait_for(2, known)")
        until(lambda: driver("states()") == ["PENDING"] * 2)
        node = clusters._Node(cluster, SMALL, 2, cluster.address)
        node.wait()
        until(lambda: driver("cpus.wait_for(2, known) or sum(cpus.held.values())") == 2)
        (came,) = driver("cpus.held")
        assert came not in driver("known")
        # The allocator has to see the node before it can take anything back.
        assert driver("cpus.become({}) or cpus.held") == {came: 2}
        until(lambda: driver("cpus.become({}) or cpus.wait_for(0, known) or len(cpus.held)") == 0)
        until(lambda: driver("states()") == [])
    finally:
        driver.close()
    assert ("ray" in sys.modules) is had_ray

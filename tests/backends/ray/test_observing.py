"""Nodes and grants from what Ray lists."""

from __future__ import annotations

from typing import Any

from stoker.backends.ray.observing import SeenGrant, grants_of, nodes_of


def listed(node_id: str, host: str = "vm", *, alive: bool = True, label: str = "") -> dict[str, Any]:
    return {
        "NodeID": node_id, "Alive": alive, "NodeManagerAddress": "10.0.0.1", "NodeManagerHostname": host,
        "Resources": {"CPU": 4.0, "GPU": 1.0}, "Labels": {"stoker-node": label} if label else {},
    }  # fmt: skip


def group(name: str, node_id: str, state: str = "CREATED", cpus: float = 1.0) -> dict[str, Any]:
    return {"name": name, "state": state, "bundles": {0: {"CPU": cpus}}, "bundles_to_node_id": {0: node_id}}


def test_nodes_have_names_of_their_own() -> None:
    nodes = nodes_of(
        [listed("aaaaaaaa"), listed("bbbbbbbb"), listed("c", "big"), listed("d", "dead", alive=False),
         listed("e", label="vm-1")],
        {"aaaaaaaa": {"CPU": 3.0}, "c": {}},
    )  # fmt: skip
    assert [node.name for node in nodes] == ["big", "vm-1", "vm-aaaaaa", "vm-bbbbbb"]
    assert [node.free_cpus for node in nodes] == [0, 0, 3, 0]


def test_grants_are_summed_by_job_and_node() -> None:
    nodes = nodes_of([listed("a"), listed("b", "other")], {})
    table = {
        "1": group("stoker:job:0", "a"), "2": group("stoker:job:1", "a", cpus=2.0), "3": group("stoker:job:2", "b"),
        "4": group("stoker:job:3", "", "PENDING"), "5": group("stoker:job:4", "a", "REMOVED"), "6": group("other", "a"),
    }  # fmt: skip
    assert grants_of(table, nodes) == [
        SeenGrant(job="job", node="", cpus=1),
        SeenGrant(job="job", node="other", cpus=1),
        SeenGrant(job="job", node="vm", cpus=3),
    ]

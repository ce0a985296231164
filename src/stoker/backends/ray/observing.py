"""What a joined cluster has: nodes, and the CPUs of them that stoker's jobs hold."""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportPrivateUsage=false
from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from typing import Any

import msgspec

from stoker.backends.ray.joining import NAMESPACE
from stoker.scale.cluster.controls import ClusterControls

_KV_NAMESPACE = b"stoker"
_CONTROLS = b"controls"
GRANT_PREFIX = "stoker"
"""First word of the names of placement groups that are grants: ``stoker:job:number``."""


class SeenNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node that is alive."""

    name: str
    node_id: str
    address: str
    cpus: int
    gpus: int
    free_cpus: int
    is_draining: bool = False
    """It leaves soon: nothing more may begin there."""


class SeenGrant(msgspec.Struct, frozen=True, kw_only=True):
    """CPUs of a node that a job's data workers may use."""

    job: str
    node: str
    """Empty while they are waited for."""
    cpus: int


class SeenLink(msgspec.Struct, frozen=True, kw_only=True):
    """What comes to a job from a node's data workers."""

    job: str
    node: str
    workers: int
    bytes_per_s: int


class SeenCluster(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster at one moment."""

    nodes: list[SeenNode]
    grants: list[SeenGrant]
    links: list[SeenLink]
    controls: ClusterControls = ClusterControls()


def observe() -> SeenCluster:
    """What this process's cluster has."""
    from ray.util import placement_group_table

    nodes = observe_nodes()
    grants = grants_of(placement_group_table(), nodes)
    # What jobs have left there is of no interest once they hold nothing.
    links = [link for job in sorted({grant.job for grant in grants}) for link in _links_of(job)]
    return SeenCluster(nodes=nodes, grants=grants, links=links, controls=load_controls(NAMESPACE))


def load_controls(namespace: str) -> ClusterControls:
    """What people have chosen for an allocator; kept in the cluster's head, which lives as long as the cluster."""
    from ray.experimental.internal_kv import _internal_kv_get

    noted = _internal_kv_get(_CONTROLS, namespace=namespace.encode())
    try:
        return msgspec.json.decode(noted, type=ClusterControls) if noted else ClusterControls()
    except msgspec.MsgspecError:  # of another version
        return ClusterControls()


def save_controls(namespace: str, controls: ClusterControls) -> None:
    """Notes it, for the next allocator and for :func:`observe`."""
    from ray.experimental.internal_kv import _internal_kv_put

    _internal_kv_put(_CONTROLS, msgspec.json.encode(controls), overwrite=True, namespace=namespace.encode())


def publish(job: str, links: list[SeenLink]) -> None:
    """Notes a job's links in the cluster's head, for :func:`observe`."""
    from ray.experimental.internal_kv import _internal_kv_put

    _internal_kv_put(_link_key(job), msgspec.json.encode(links), namespace=_KV_NAMESPACE)


def _links_of(job: str) -> list[SeenLink]:
    from ray.experimental.internal_kv import _internal_kv_get

    noted = _internal_kv_get(_link_key(job), namespace=_KV_NAMESPACE)
    return msgspec.json.decode(noted, type=list[SeenLink]) if noted else []


def _link_key(job: str) -> bytes:
    return f"links:{job}".encode()


def observe_nodes() -> list[SeenNode]:
    """Its nodes."""
    import ray
    from ray._private.state import available_resources_per_node, state

    return nodes_of(ray.nodes(), available_resources_per_node(), state.get_draining_nodes())


def own_address() -> str:
    """This machine's address, as Ray takes it for a node's."""
    import ray

    return ray.util.get_node_ip_address()


def nodes_of(
    listed: Iterable[Mapping[str, Any]], free: Mapping[str, Mapping[str, float]], draining: Container[str] = ()
) -> list[SeenNode]:
    """Nodes that are alive, from what Ray lists, with a different name each.

    Args:
        listed: of ``ray.nodes()``.
        free: resources by node that nobody has.
        draining: ids of nodes that leave soon.
    """
    alive = [node for node in listed if node["Alive"]]
    names = [node.get("Labels", {}).get("stoker-node") or node["NodeManagerHostname"] for node in alive]
    count = Counter(names)
    found = [
        SeenNode(
            name=name if count[name] == 1 else f"{name}-{node['NodeID'][:6]}",
            node_id=node["NodeID"],
            address=node["NodeManagerAddress"],
            cpus=int(node["Resources"].get("CPU", 0)),
            gpus=int(node["Resources"].get("GPU", 0)),
            free_cpus=int(free.get(node["NodeID"], {}).get("CPU", 0)),
            is_draining=node["NodeID"] in draining,
        )
        for name, node in zip(names, alive, strict=True)
    ]
    return sorted(found, key=lambda node: node.name)


def grants_of(table: Mapping[str, Mapping[str, Any]], nodes: Iterable[SeenNode]) -> list[SeenGrant]:
    """Grants among the placement groups that Ray lists."""
    names = {node.node_id: node.name for node in nodes}
    cpus: Counter[tuple[str, str]] = Counter()
    for group in table.values():
        words = group["name"].split(":")
        if words[0] == GRANT_PREFIX and len(words) == 3 and group["state"] in ("CREATED", "PENDING"):
            for number, bundle in group["bundles"].items():
                node_id = group.get("bundles_to_node_id", {}).get(number, "")
                node = names.get(node_id, "") if group["state"] == "CREATED" else ""
                cpus[words[1], node] += int(bundle.get("CPU", 0))
    return [SeenGrant(job=job, node=node, cpus=held) for (job, node), held in sorted(cpus.items())]

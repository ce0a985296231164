"""A job's CPUs and hosts on the nodes of a cluster: placement groups, and an actor for each node. All of Ray's effects.

A group has one bundle of one CPU: groups can't be changed, and are made and removed in milliseconds.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUntypedFunctionDecorator=false
from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Mapping
from typing import Any

import msgspec
import ray
from ray.util import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from stoker.backends.ray.actor import HostActor
from stoker.backends.ray.observing import GRANT_PREFIX
from stoker.backends.remote.host.brokered import HostOrder, HostReady

_NODE_ID = "ray.io/node-id"
_TAKE_S = 2.0
"""A group on a node with free CPUs is there in milliseconds; one that is not has lost them to another job."""


_KEPT_S = 5.0
"""CPUs of a new node that were waited for are kept for so long: the allocator has to see that node first."""
_MOST_EXCLUDED = 500
"""The ids of so many nodes fit a selector; in a larger cluster nothing is waited for."""


class NodeCpus:
    """The CPUs that a job holds, and those that it waits for.

    Args:
        job: in the names of the groups.
    """

    def __init__(self, job: str) -> None:
        self._job = job
        self._groups: dict[str, list[Any]] = {}
        self._pending: list[Any] = []
        self._kept_s: dict[str, float] = {}
        """Until when what came on a new node is not given back."""
        self._count = 0

    @property
    def held(self) -> dict[str, int]:
        """CPUs by node."""
        return {node: len(groups) for node, groups in self._groups.items() if groups}

    def become(self, grants: Mapping[str, int]) -> set[str]:
        """Takes and gives back CPUs until they are the granted ones; returns the nodes that had fewer after all."""
        now_s = time.monotonic()
        for node in [*self._groups]:
            if self._kept_s.get(node, 0.0) <= now_s:
                self._give_back(node, len(self._groups[node]) - grants.get(node, 0))
        for node, cpus in grants.items():
            self._take(node, cpus - self.held.get(node, 0))
        return {node for node, cpus in grants.items() if self.held.get(node, 0) < cpus}

    def wait_for(self, count: int, nodes: Collection[str]) -> None:
        """Leaves groups pending on nodes that are still to come, and takes in those for which one has.

        Ray's and Kubernetes' autoscalers add nodes for pending groups. CPUs of the nodes that are there are not for
        these groups: who gets them is decided elsewhere.

        Args:
            count: CPUs.
            nodes: all that the cluster has now.
        """
        if self._pending:
            table = placement_group_table()
            for group in [*self._pending]:
                seen = table.get(group.id.hex(), {})
                if seen.get("state") == "CREATED":
                    node = next(iter(seen["bundles_to_node_id"].values()))
                    self._pending.remove(group)
                    self._groups.setdefault(node, []).append(group)
                    self._kept_s[node] = time.monotonic() + _KEPT_S
        for group in self._pending[count:]:
            _remove(group)
        del self._pending[count:]
        if not nodes or len(nodes) > _MOST_EXCLUDED:
            return
        # Without spaces: Ray takes them as part of the values.
        selector = {_NODE_ID: f"!in({','.join(sorted(nodes))})"}
        self._pending += [self._group(selector) for _ in range(count - len(self._pending))]

    def _group(self, selector: dict[str, str]) -> Any:
        name = f"{GRANT_PREFIX}:{self._job}:{os.getpid()}-{self._count}"
        self._count += 1
        return placement_group([{"CPU": 1}], name=name, bundle_label_selector=[selector])

    def _give_back(self, node: str, count: int) -> None:
        for _ in range(count):
            _remove(self._groups[node].pop())

    def _take(self, node: str, count: int) -> None:
        taken = [self._group({_NODE_ID: node}) for _ in range(count)]
        end_s = time.monotonic() + _TAKE_S  # of all: the hosts must hear in time that the broker lives
        for group in taken:
            if group.wait(max(0.0, end_s - time.monotonic())):
                self._groups.setdefault(node, []).append(group)
            else:
                _remove(group)


def _remove(group: Any) -> None:
    with contextlib.suppress(Exception):  # its node or the head is gone, and the group with it
        remove_placement_group(group)


class NodeHost:
    """An actor with its host on one node.

    Args:
        node_id: Ray's.
        address: of the node.
        certificate: of the gateway.
        cores: that it lends at first.
    """

    def __init__(self, node_id: str, address: str, certificate: bytes, cores: int) -> None:
        strategy: Any = NodeAffinitySchedulingStrategy(node_id, soft=False)
        # It computes nothing itself: the CPUs are those of the groups.
        make: Any = ray.remote(num_cpus=0, max_restarts=0, scheduling_strategy=strategy)(HostActor)
        self._actor = make.remote()
        order = HostOrder(listen=address, certificate=certificate, cores=cores)
        self._started = self._actor.start.remote(msgspec.json.encode(order))
        self._renewed: Any = None
        self.ready: HostReady | None = None
        self.error = ""
        """Why there is none, or none any more."""

    @property
    def address(self) -> str:
        """Where it listens; empty while it does not."""
        return self.ready.address if self.ready is not None else ""

    def look(self) -> None:
        """Notes whether it has begun or ended, and tells it that the broker lives."""
        if self.error:
            return
        if self.ready is None:
            answer = self._result(self._started)
            if answer is not None:
                ready = msgspec.json.decode(answer, type=HostReady)
                self.ready, self.error = ready, ready.error
        elif self._renewed is None or self._is_done(self._renewed):
            if self._renewed is not None:
                self._result(self._renewed)
            self._renewed = self._actor.renew.remote()

    @staticmethod
    def _is_done(reference: Any) -> bool:
        return bool(ray.wait([reference], timeout=0)[0])

    def _result(self, reference: Any) -> Any:
        """What a call returned, None if it has not; notes an error."""
        if not self._is_done(reference):
            return None
        try:
            return ray.get(reference)
        except Exception as error:  # Ray's own, or one that the actor's Python could not make
            self.error = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            return None

    def end(self) -> None:
        """Ends it; the kernel ends the host with its actor."""
        with contextlib.suppress(Exception):
            ray.kill(self._actor)

"""The broker: the only process of a run that imports Ray. Obtains CPUs of nodes, starts hosts there, tells its gateway.

A child of the gateway that may die at any time, or be ended by Ray when the cluster's head is gone: workers here go on,
and another broker is started.
"""

from __future__ import annotations

import getpass
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from stoker.backends.ray import joining
from stoker.backends.ray.allocator.launch import JOB_ENV, JobOwner
from stoker.backends.ray.grants import FreeNode, Waiting, grants_alone
from stoker.backends.ray.own_cluster import OwnCluster
from stoker.backends.remote.brokering import GRACE_S, BrokerSettings, Hosts, KnownHost, Lines, LinkUse, Wanted
from stoker.core.errors import ClusterStartError, StokerError, WireError
from stoker.core.processes.parents import die_with, set_name
from stoker.core.saying import say

if TYPE_CHECKING:
    from stoker.backends.ray.nodes import NodeHost
    from stoker.backends.ray.observing import SeenNode

_TICK_S = 0.5
_LINGER_S = 20.0
"""CPUs that are not needed are kept for so long: the next epoch wants them again, and its program is loaded there."""
_LEAVE_S = 3.0
"""A host whose CPUs were given back ends after its grace and this: later than its gateway leaves it."""
_AGAIN_S = 5.0
"""A node whose host failed, or whose free CPUs others took first, is tried again after this."""


class Wants:
    """The most workers that were wanted within the last while."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int]] = []

    def most(self, now_s: float, wanted: int) -> int:
        """Notes what is wanted now."""
        kept = [(at_s, count) for at_s, count in self._seen if now_s - at_s < _LINGER_S and count > wanted]
        self._seen = [*kept, (now_s, wanted)]
        return max(count for _, count in self._seen)


class Broker:
    """Serves one gateway.

    Args:
        lines: to it.
        settings: of the run.
        certificate: of the gateway.
        own: the cluster, if it is the run's.
    """

    def __init__(self, lines: Lines, settings: BrokerSettings, certificate: bytes, own: OwnCluster | None) -> None:
        from stoker.backends.ray.allocator.client import GrantedCpus
        from stoker.backends.ray.nodes import NodeCpus

        # A cluster of this process alone has no other jobs to share with; ranks of a run are jobs to each other.
        is_shared = own is None or bool(settings.shared)
        whose = owner_of(os.environ)
        job = f"{settings.job}@{os.uname().nodename}"
        self._granted = GrantedCpus(job, whose.user, whose.priority) if is_shared else None
        self._lines = lines
        self._own = own
        self._certificate = certificate
        self._job = settings.job
        self._cpus = NodeCpus(settings.job)
        self._hosts: dict[str, NodeHost] = {}
        self._nodes: dict[str, SeenNode] = {}
        self._wanted = Wanted(workers=0)
        self._wants = Wants()
        self._waiting = Waiting()
        self._queues = 0
        """Windows of the queue that the allocator has got."""
        self._refused = set[str]()
        self._again_s: dict[str, float] = {}
        self._full_s: dict[str, float] = {}
        self._left_s: dict[str, float] = {}
        """When nodes have lost their CPUs; the gateway drains their workers."""
        self._told: Hosts | None = None
        self._published: tuple[LinkUse, ...] = ()

    def run(self) -> None:
        """Serves until the gateway is gone.

        Raises:
            ClusterStartError: the run's cluster has lost its keeper.
        """
        poll = select.poll()
        poll.register(self._lines, select.POLLIN)
        if self._own is not None:
            poll.register(self._own, select.POLLIN)
        while True:
            ready = [fd for fd, _ in poll.poll(_TICK_S * 1e3)]
            if self._own is not None and self._own.fileno() in ready:
                raise ClusterStartError("`keeper` of the run's cluster must live, and has died; another is started")
            heard = self._lines.receive(Wanted)
            if heard is None:
                return
            self._wanted = heard[-1] if heard else self._wanted
            self._turn(time.monotonic())

    def _turn(self, now_s: float) -> None:
        from stoker.backends.ray.observing import observe_nodes

        self._nodes = {node.node_id: node for node in observe_nodes()}
        grants = self._grants(now_s)
        for node in self._cpus.become(grants):
            self._full_s[node] = now_s + _AGAIN_S
        unmet = self._granted.waited if self._granted is not None else 0
        self._cpus.wait_for(self._waiting.count(unmet, now_s), self._nodes)
        texts = self._look_at_hosts(now_s)
        self._publish()
        known = known_hosts(self._cpus.held, self._hosts, self._nodes)
        hosts = Hosts(hosts=known, texts=tuple(texts), grace_s=self._grace_s)
        if hosts != self._told:
            self._lines.send(hosts)
            self._told = msgspec.structs.replace(hosts, texts=())

    @property
    def _grace_s(self) -> float:
        """Time that workers on CPUs that are taken back have for the items at work."""
        chosen = self._granted.grace_s if self._granted is not None else None
        return GRACE_S if chosen is None else chosen

    def _publish(self) -> None:
        """Shows the cluster's users what comes from each node."""
        from stoker.backends.ray.observing import SeenLink, publish

        if self._wanted.links == self._published:
            return
        names = {host.address: self._nodes[node].name for node, host in self._hosts.items() if node in self._nodes}
        links = [
            SeenLink(job=self._job, node=names[use.address], workers=use.workers, bytes_per_s=use.bytes_per_s)
            for use in self._wanted.links
            if use.address in names
        ]
        publish(self._job, links)
        self._published = self._wanted.links

    def _grants(self, now_s: float) -> Mapping[str, int]:
        """The CPUs to have: those that the allocator gives; without one, as many as are free."""
        self._refused |= {node for node, host in self._hosts.items() if host.address in self._wanted.refused}
        own = own_addresses()
        wanted = self._wants.most(now_s, self._wanted.workers)
        homes = [node.node_id for node in self._nodes.values() if node.address in own]
        failed = {node for node, again_s in self._again_s.items() if again_s > now_s}
        if self._granted is not None:
            queue = self._wanted.queue if self._wanted.queues != self._queues else None
            self._queues = self._wanted.queues
            granted = self._granted.ask(wanted, self._cpus.held, homes, self._refused | failed, queue)
            if granted is not None:
                return granted
        nodes = [
            FreeNode(
                node_id=node.node_id,
                free_cpus=node.free_cpus if self._full_s.get(node.node_id, 0.0) <= now_s else 0,
                is_here=node.address in own,
            )
            for node in self._nodes.values()
            if not node.is_draining
            and node.node_id not in self._refused
            and self._again_s.get(node.node_id, 0.0) <= now_s
        ]
        return grants_alone(wanted, nodes, self._cpus.held)

    def _look_at_hosts(self, now_s: float) -> list[str]:
        """Starts and ends hosts as CPUs come and go; lines on those that failed."""
        from stoker.backends.ray.nodes import NodeHost

        held, texts = self._cpus.held, list[str]()
        for node_id, host in list(self._hosts.items()):
            host.look()
            node = self._nodes.get(node_id)
            if host.error and node is not None:
                texts.append(f"node `{node.name}` gets no data workers for now: {host.error}")
                self._again_s[node_id] = now_s + _AGAIN_S
            if node_id in held:
                self._left_s.pop(node_id, None)
            left_s = self._left_s.setdefault(node_id, now_s) if node_id not in held else now_s
            if host.error or node is None or now_s - left_s > self._grace_s + _LEAVE_S:
                host.end()
                del self._hosts[node_id]
                self._left_s.pop(node_id, None)
        for node_id, cpus in held.items():
            if node_id not in self._hosts and node_id in self._nodes:
                address = self._nodes[node_id].address
                self._hosts[node_id] = NodeHost(node_id, address, self._certificate, cpus)
        return texts


def owner_of(environ: Mapping[str, str]) -> JobOwner:
    """Whose a job is: as at its submission, else who runs it."""
    try:
        found = msgspec.json.decode(environ.get(JOB_ENV, "{}"), type=JobOwner)
    except msgspec.MsgspecError:
        found = JobOwner()
    return found if found.user else JobOwner(user=getpass.getuser(), priority=found.priority)


def known_hosts(
    held: Mapping[str, int], hosts: Mapping[str, NodeHost], nodes: Mapping[str, SeenNode]
) -> tuple[KnownHost, ...]:
    """What the gateway gets to know: hosts that listen, with the CPUs that are held where they are."""
    return tuple(
        KnownHost(
            address=host.address, name=nodes[node].name, cores=held[node], certificate=host.ready.certificate
        )
        for node, host in hosts.items()
        if host.ready is not None and not host.error and node in nodes and held.get(node)
    )  # fmt: skip


def own_addresses() -> Sequence[str]:
    """Addresses of this machine, as nodes of a cluster may have them."""
    from stoker.backends.ray.observing import own_address

    return "127.0.0.1", own_address()


def main(fd: int, parent_pid: int, settings: str, certificate: str) -> None:
    """Entry point of the process."""
    die_with(parent_pid)
    set_name(b"stoker_broker")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the training process decides
    lines = Lines(socket.socket(fileno=fd))
    chosen = msgspec.json.decode(settings, type=BrokerSettings)
    own: OwnCluster | None = None
    try:
        target = joining.find()
        if target is None:
            own = OwnCluster(chosen.cores, chosen.shared)
            target = own.target
        joining.connect(target, insecure=chosen.insecure)
        Broker(lines, chosen, bytes.fromhex(certificate), own).run()
    except StokerError as error:
        _tell(lines, f"no data workers on other machines: {error.args[0]}")
        sys.exit(1)
    except (OSError, WireError):
        pass  # the gateway is gone
    finally:
        if own is not None:
            own.close()


def _tell(lines: Lines, text: str) -> None:
    try:
        lines.send(Hosts(texts=(text,)))
    except OSError:
        say(text)

"""`stoker cache status --join RING`: the workers of a cluster, from the status of each."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from stoker._version import __version__
from stoker.cache.cluster.client.client import PeerClient
from stoker.cache.cluster.membership.ring import CHUNK_PAGES, HashRing, Member, RingRecord
from stoker.cache.names import ObjectName
from stoker.cache.peer_clients import peer_client
from stoker.cache.protocols import Reads
from stoker.cache.settings import CacheSettings
from stoker.cli.cache.arguments import print_json, show, stdout_style
from stoker.core.errors import MembershipError
from stoker.core.units import format_bytes, format_count
from stoker.ui.figures import write_percent
from stoker.ui.report_text import Style
from stoker.ui.tables import render_table

_THREADS = 32
_LATELY = ("node", "hits", "sent", "from stores", "from nodes")
_TOLD = ("draining", "found", "missed", "sent_bytes", "fetched_bytes", "clients", "lately")
_HEADING = ("node", "weight", "state", "fill", "hits", "sent", "from stores", "clients", "address")


class RingNode(NamedTuple):
    """A worker.

    Attributes:
        member: its place in the ring.
        status: what it says of itself; None if it does not answer.
        fault: why it does not.
    """

    member: Member
    status: dict[str, Any] | None
    fault: str = ""

    @property
    def state(self) -> str:
        """``alive``, ``draining``, ``lost`` if it does not answer, ``other`` if it answers as another version does."""
        if self.status is None:
            return "lost"
        if self.lacks:
            return "other"
        return "draining" if self.status["draining"] else "alive"

    @property
    def lacks(self) -> list[str]:
        """Fields that a worker of another version does not report."""
        return [name for name in _TOLD if self.status is not None and name not in self.status]


class RingOwner(NamedTuple):
    """Which workers serve some pages of an object.

    Attributes:
        first_page, last_page: of these pages.
        node: their owner.
        then: workers to try in order when the owner is lost.
    """

    first_page: int
    last_page: int
    node: str
    then: list[str]

    def words(self, owners: int) -> str:
        """The node in words.

        Args:
            owners: that the object has in all.
        """
        pages = "" if owners == 1 else f" (pages {self.first_page} to {self.last_page})"
        then = f"; lost, {' or '.join(self.then)}" if self.then else ""
        return f"{self.node}{pages}{then}"


def owners_of(settings: CacheSettings, name: ObjectName, num_pages: int) -> list[RingOwner]:
    """The workers that have an object, or would.

    Args:
        settings: of the cache, with the cluster.
        name: of the object.
        num_pages: of it; 0 if its size is unknown.

    Raises:
        MembershipError: nobody tells which workers there are.
    """
    ring = HashRing(_record(_client(settings), settings.cluster.join or ""))
    found: list[RingOwner] = []
    for first in range(0, max(num_pages, 1), CHUNK_PAGES):
        node, *then = ring.owners(name, first, 2) or ["no worker is there"]
        last = max(min(first + CHUNK_PAGES, num_pages) - 1, 0)
        if found and (found[-1].node, found[-1].then) == (node, then):
            found[-1] = found[-1]._replace(last_page=last)
        else:
            found.append(RingOwner(first, last, node, then))
    return found


def _client(settings: CacheSettings) -> PeerClient:
    return peer_client(settings)


def _record(client: PeerClient, join: str) -> RingRecord:
    record = client.record
    if record is None:
        raise MembershipError(f"`{join}` must tell which workers there are, and does not answer")
    return record


def show_ring(settings: CacheSettings, *, as_json: bool) -> int:
    """Shows the state of every worker of a cluster; 1 if one is lost, or its answer is invalid.

    Args:
        settings: of the cache, with the cluster.
        as_json: prints one JSON object.

    Raises:
        MembershipError: nobody tells which workers there are.
    """
    join = settings.cluster.join or ""
    epoch, nodes = _ask(_client(settings), join)
    if as_json:
        found = [
            {**_plain(node.member), "state": node.state, "fault": node.fault, "status": node.status} for node in nodes
        ]
        print_json({"join": join, "epoch": epoch, "nodes": found})
    else:
        show(render_ring(epoch, nodes, stdout_style()))
    return int(any(node.state in ("lost", "other") for node in nodes))


def _ask(client: PeerClient, join: str) -> tuple[int, list[RingNode]]:
    record = _record(client, join)
    with ThreadPoolExecutor(_THREADS) as pool:
        told = list(pool.map(client.status, [member.id for member in record.members]))
    return record.epoch, [
        RingNode(member, status, "" if status is not None else client.fault(member.id))
        for member, status in zip(record.members, told, strict=True)
    ]


def _plain(member: Member) -> dict[str, object]:
    return {"node": member.id, "addresses": list(member.addresses), "weight": member.weight}


def render_ring(epoch: int, nodes: list[RingNode], style: Style) -> list[str]:
    """The ring as lines.

    Args:
        epoch: of the ring.
        nodes: its workers.
        style: what the terminal shows.
    """
    lost = sum(node.status is None for node in nodes)
    lines = [style.paint(f"Ring of {format_count(len(nodes), 'node')}, change {epoch}", 1), ""]
    lines += render_table(_HEADING, [_row(node) for node in nodes], style, right=(1, 3, 4, 5, 6, 7))
    lines += _lately(nodes, style)
    faults = [
        f"{node.member.id}: {each['directory']}: {each['state']}; its pages are read from the store"
        for node in nodes
        for each in (node.status or {}).get("directories", [])
        if each["state"] != "ok"
    ]
    faults += [f"{node.member.id}: {node.fault}" for node in nodes if node.fault]
    faults += [
        f"{node.member.id}: is of stoker {(node.status or {}).get('version', 'without a version')} and says nothing of "
        f"{', '.join(node.lacks)}; restart it with {__version__}, the version of this command"
        for node in nodes
        if node.lacks
    ]
    if faults:
        lines += ["", *(style.paint(style.clean(fault), 33) for fault in faults)]
    if lost:
        lines += ["", f"{format_count(lost, 'node')} lost: what they hold is read from their successors or the store."]
    return lines


def _row(node: RingNode) -> tuple[str, ...]:
    place = (node.member.id, f"{node.member.weight:g}", node.state)
    # In a static ring a worker's id is its address.
    address = ", ".join(each for each in node.member.addresses if not each.endswith(f"//{node.member.id}"))
    status = node.status
    if status is None or node.lacks:
        return (*place, "", "", "", "", "", address)
    hits = _hits(Reads(status["found"], status["missed"]).hit_frac)
    sent, fetched = (format_bytes(status[name]) for name in ("sent_bytes", "fetched_bytes"))
    return (*place, _fill(status), hits, sent, fetched, str(status["clients"]), address)


def _hits(frac: float | None) -> str:
    return "" if frac is None else write_percent(frac)


def _lately(nodes: list[RingNode], style: Style) -> list[str]:
    """Rates of the nodes in the last seconds."""
    told = [(node.member.id, node.status["lately"]) for node in nodes if node.status is not None and not node.lacks]
    if not told:
        return []
    over = f"{max(1, round(max(lately['over_s'] for _, lately in told)))} s"
    names = ("sent_bytes_per_s", "fetched_bytes_per_s", "moved_bytes_per_s")
    if not any(lately["hit_ratio"] is not None or any(lately[name] for name in names) for _, lately in told):
        return ["", f"Idle for the last {over}."]
    rows = [
        (node, _hits(lately["hit_ratio"]), *(f"{format_bytes(lately[name])}/s" for name in names))
        for node, lately in told
    ]
    return ["", style.paint(f"In the last {over}", 1), "", *render_table(_LATELY, rows, style, right=(1, 2, 3, 4))]


def _fill(status: dict[str, Any]) -> str:
    """How much of a worker's directories is used."""
    used, limit = (
        sum(each.get(name, 0) for each in status.get("directories", [])) for name in ("used_bytes", "limit_bytes")
    )
    return f"{write_percent(used / limit)} of {format_bytes(limit)}" if limit else ""

"""`stoker cache status --join RING`: the workers of a cluster, as each of them says."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from stoker.cache.cluster.client import PeerClient
from stoker.cache.cluster.ring import Member
from stoker.cache.peer_clients import peer_client
from stoker.cli.cache.arguments import print_json, show, stdout_style
from stoker.core.errors import MembershipError
from stoker.core.units import format_bytes
from stoker.ui.figures import write_percent, write_plural
from stoker.ui.report_text import Style
from stoker.ui.tables import render_table

_THREADS = 32
_HEADING = ("node", "weight", "state", "hits", "sent", "from stores", "clients", "address")


class Node(NamedTuple):
    """A worker.

    Attributes:
        member: its place in the ring.
        status: what it says of itself; None if it does not answer.
    """

    member: Member
    status: dict[str, Any] | None

    @property
    def state(self) -> str:
        """``alive``, ``draining``, or ``lost`` if it does not answer."""
        if self.status is None:
            return "lost"
        return "draining" if self.status["draining"] else "alive"


def show_ring(join: str, directory: Path, secret_file: Path | None, *, as_json: bool) -> int:
    """Asks every worker of a cluster and shows what they say.

    Args:
        join: the cluster.
        directory: of this machine's cache.
        secret_file: of the cluster; None for the one in the directory.
        as_json: prints one JSON object.

    Raises:
        MembershipError: nobody tells which workers there are.
    """
    epoch, nodes = _ask(peer_client(join, directory, secret_file), join)
    if as_json:
        found = [{**_plain(node.member), "state": node.state, "status": node.status} for node in nodes]
        print_json({"join": join, "epoch": epoch, "nodes": found})
    else:
        show(render_ring(epoch, nodes, stdout_style()))
    return 0


def _ask(client: PeerClient, join: str) -> tuple[int, list[Node]]:
    record = client.record
    if record is None:
        raise MembershipError(f"`{join}` must tell which workers there are, and does not answer")
    with ThreadPoolExecutor(_THREADS) as pool:
        told = pool.map(client.status, [member.id for member in record.members])
        return record.epoch, [Node(member, status) for member, status in zip(record.members, told, strict=True)]


def _plain(member: Member) -> dict[str, Any]:
    return {"node": member.id, "addresses": list(member.addresses), "weight": member.weight}


def render_ring(epoch: int, nodes: list[Node], style: Style) -> list[str]:
    """The ring as lines.

    Args:
        epoch: of the ring.
        nodes: its workers.
        style: what the terminal shows.
    """
    lost = sum(node.status is None for node in nodes)
    lines = [style.paint(f"Ring of {write_plural(len(nodes), 'node')}, change {epoch}", 1), ""]
    lines += render_table(_HEADING, [_row(node) for node in nodes], style, right=(1, 3, 4, 5, 6))
    if lost:
        lines += ["", f"{write_plural(lost, 'node')} lost: what they hold is read from their successors or the store."]
    return lines


def _row(node: Node) -> tuple[str, ...]:
    place = (node.member.id, f"{node.member.weight:g}", node.state)
    # In a static ring a worker's id is its address.
    address = ", ".join(each for each in node.member.addresses if not each.endswith(f"//{node.member.id}"))
    status = node.status
    if status is None:
        return (*place, "", "", "", "", address)
    asked = status["hits"] + status["misses"]
    hits = write_percent(status["hits"] / asked) if asked else ""
    sent, fetched = (format_bytes(status[name]) for name in ("sent_bytes", "fetched_bytes"))
    return (*place, hits, sent, fetched, str(status["clients"]), address)

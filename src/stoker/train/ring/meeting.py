"""How the ranks of a process group connect their sockets: addresses, a secret for this time, and proof of it.

All goes through one :class:`Assembly`, which gathers some bytes of each rank: the process group itself. The first
rank's secret reaches the others by it. Each connection begins with `wire`'s proofs, which cover who connects to whom
and for what; a process without the secret is refused, and the rank waits on for the right one.
"""

from __future__ import annotations

import os
import secrets as random_bytes
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

import msgspec

from stoker._version import __version__
from stoker.core.errors import ExchangeError, StokerError
from stoker.train.ring.addresses import is_loopback, route_to
from stoker.train.ring.reception import CallingCard, Reception, call
from stoker.wire.secrets import DEFAULT_IDENTITY, Secrets
from stoker.wire.sockets import address_of, check_address, listen

PROTOCOL = 2
"""Version of what follows the proofs."""
_MEET_S = 60.0
"""Longest time to connect, where the group's own is longer."""
_SECRET_BYTES = 32
_MOST_TROUBLE = 150


class Assembly(Protocol):
    """The ranks that connect, all of them at the same time."""

    @property
    def rank(self) -> int:
        """This one, from 0; its place in the process group."""
        ...

    @property
    def ranks(self) -> Sequence[int]:
        """Global numbers of all of them."""
        ...

    def gather(self, data: bytes) -> list[bytes]:
        """What each rank passes, by rank: at most :data:`GATHERED_BYTES`."""
        ...


GATHERED_BYTES = 512
"""Most that an assembly gathers of a rank."""


class RankPresence(msgspec.Struct, frozen=True, array_like=True):
    """What a rank says of itself before it connects.

    Attributes:
        stoker: its version.
        protocol: of the exchange.
        address: where it listens.
        host: what machine it is on; alike for ranks of one.
        secret: fresh; the first rank's is used.
        trouble: why it can't; empty if it can.
    """

    stoker: str
    protocol: int
    address: str
    host: str
    secret: bytes
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class RingSockets:
    """The connections of a rank in one ring.

    Attributes:
        following: to the next rank.
        preceding: from the one before.
        ranks: of the ring, in its order; places in the assembly.
        place: of this rank among them.
    """

    following: socket.socket
    preceding: socket.socket
    ranks: tuple[int, ...]
    place: int

    def neighbour(self, step: int) -> int:
        """The rank so many places further."""
        return self.ranks[(self.place + step) % len(self.ranks)]


def meet(
    assembly: Assembly, rings: Mapping[str, Sequence[int]], find_address: Callable[[], str], timeout_s: float
) -> tuple[dict[str, RingSockets], list[str]]:
    """Connects a rank in all rings that it is in. A collective: all ranks call it, each with its own rings.

    Args:
        assembly: all ranks.
        rings: by name, ranks in their order; at least two each, this rank among them.
        find_address: finds that of the interface to listen on, such as ``10.0.0.3``.
        timeout_s: of the process group.

    Returns:
        the connections by ring, and the machine of each rank.

    Raises:
        ExchangeError: a rank can't, or has another version; all ranks raise it.
    """
    until = time.monotonic() + min(timeout_s, _MEET_S)
    with ExitStack() as made:
        server, present = listen_together(assembly, find_address, made)
        trouble, found = "", dict[str, RingSockets]()
        try:
            found = _connect(assembly.rank, present, rings, server, until)
        except (StokerError, OSError) as error:
            trouble = str(error)
        troubles = [data.decode(errors="replace") for data in assembly.gather(trouble.encode()[:GATHERED_BYTES])]
    if any(troubles):
        for sockets in found.values():
            sockets.following.close()
            sockets.preceding.close()
        place, why = next((place, why) for place, why in enumerate(troubles) if why)
        rank = assembly.ranks[place]
        raise ExchangeError(f"`rank {rank}` must connect to its neighbours, and does not: {why}", rank=rank)
    return found, [each.host for each in present]


def listen_together(
    assembly: Assembly, find_address: Callable[[], str], made: ExitStack
) -> tuple[socket.socket, list[RankPresence]]:
    """This rank's listening socket, and what each rank says of itself. A collective.

    Args:
        assembly: all ranks.
        find_address: as for :func:`meet`.
        made: closes the socket.

    Raises:
        ExchangeError: a rank can't listen, or has another version; all ranks raise it.
    """
    try:
        address, trouble = find_address(), ""
        server = made.enter_context(listen(_url(address)))
    except (OSError, ValueError) as error:  # the others hear of it, instead of waiting
        address, trouble = "127.0.0.1", str(error)
        server = made.enter_context(listen(_url(address)))
    present = _exchanged(assembly, server, address, trouble)
    elsewhere = next((each for each in present if not is_loopback(check_address(each.address)[0])), None)
    if elsewhere is not None and any(is_loopback(check_address(each.address)[0]) for each in present):
        # A name of this machine may lead to itself by loopback, which the others can't reach.
        if is_loopback(address):
            address = route_to(*check_address(elsewhere.address))
            server = made.enter_context(listen(_url(address)))
        present = _exchanged(assembly, server, address, "")
    return server, present


def _exchanged(assembly: Assembly, server: socket.socket, address: str, trouble: str) -> list[RankPresence]:
    own = RankPresence(
        __version__, PROTOCOL, address_of(server, _url(address)), host_name(),
        random_bytes.token_bytes(_SECRET_BYTES), trouble[:_MOST_TROUBLE],
    )  # fmt: skip
    present: list[RankPresence] = []
    for rank, data in zip(assembly.ranks, assembly.gather(msgspec.msgpack.encode(own)), strict=True):
        try:
            each = msgspec.msgpack.decode(data, type=RankPresence)
        except msgspec.MsgspecError as error:
            raise ExchangeError(
                f"`rank {rank}` must say who it is as stoker {__version__} does, and does not: {error}; install the "
                "same stoker on all machines",
                rank=rank,
            ) from None
        present.append(each)
        if each.trouble:
            raise ExchangeError(f"`rank {rank}` must listen for its neighbours, and can't: {each.trouble}", rank=rank)
        if (each.stoker, each.protocol) != (present[0].stoker, present[0].protocol):
            raise ExchangeError(
                f"`stoker` must be one version on all ranks, got {present[0].stoker} on rank {assembly.ranks[0]} and "
                f"{each.stoker} on rank {rank}; install the same on all machines",
                rank=rank,
            )
    return present


def secret_of(present: Sequence[RankPresence]) -> Secrets:
    """What the ranks prove to each other: the first one's."""
    return Secrets({DEFAULT_IDENTITY: present[0].secret})


def host_name() -> str:
    """What tells machines apart: the boot, and the network as a process sees it."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
    except OSError:
        boot = ""
    try:
        network = os.readlink("/proc/self/ns/net")
    except OSError:
        network = ""
    return f"{socket.gethostname()[:64]} {boot} {network}"


def _connect(
    rank: int, present: Sequence[RankPresence], rings: Mapping[str, Sequence[int]], server: socket.socket, until: float
) -> dict[str, RingSockets]:
    known = secret_of(present)
    following: dict[str, socket.socket] = {}
    with Reception(server, rank, known, until) as reception, ExitStack() as opened:
        for name, ranks in rings.items():
            place = list(ranks).index(rank)
            called = ranks[(place + 1) % len(ranks)]
            following[name] = call(present[called].address, known, CallingCard(name, rank, called), until)
            opened.callback(following[name].close)
        preceding = reception.wait_for(
            {(name, ranks[(list(ranks).index(rank) - 1) % len(ranks)]) for name, ranks in rings.items()}
        )
        opened.pop_all()
    found: dict[str, RingSockets] = {}
    for name, ranks in rings.items():
        found[name] = RingSockets(following[name], preceding[name], tuple(ranks), list(ranks).index(rank))
    return found


def _url(address: str) -> str:
    return f"tcp://[{address}]:0" if ":" in address else f"tcp://{address}:0"

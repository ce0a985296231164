"""Which interface of this machine a rank listens on: gloo's, so that both exchange over the same network."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import struct
from collections.abc import Mapping

_GET_ADDRESS = 0x8915  # SIOCGIFADDR
_REQUEST = struct.Struct("16s24x")  # struct ifreq
_ADDRESS_AT = 20
_DISCARD_PORT = 9


def own_address(environ: Mapping[str, str] = os.environ) -> str:
    """This machine's address on the network of the process group.

    It is that of the interface that ``GLOO_SOCKET_IFNAME`` names, else of the route to ``MASTER_ADDR``, else what this
    machine's name stands for, else loopback.

    Raises:
        ValueError: the interface has no address.
    """
    name = environ.get("GLOO_SOCKET_IFNAME", "").split(",")[0].strip()
    if name:
        return address_of_interface(name)
    for host in (environ.get("MASTER_ADDR", ""), socket.gethostname()):
        if host:
            try:
                return route_to(host, int(environ.get("MASTER_PORT", "0")) or _DISCARD_PORT)
            except (OSError, ValueError):
                continue
    return "127.0.0.1"


def address_of_interface(name: str) -> str:
    """The IPv4 address of an interface, or its first global IPv6 address; raises ``ValueError``."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            answer = fcntl.ioctl(sock.fileno(), _GET_ADDRESS, _REQUEST.pack(name.encode()[:15]))
            return socket.inet_ntoa(answer[_ADDRESS_AT : _ADDRESS_AT + 4])
        except OSError:
            pass
    found = _six(name)
    if found is None:
        raise ValueError(
            f"`GLOO_SOCKET_IFNAME` must name an interface with an address, got {name!r}; `ip addr` lists them"
        )
    return found


def _six(name: str) -> str | None:
    try:
        with open("/proc/net/if_inet6", encoding="ascii") as file:
            rows = [line.split() for line in file]
    except OSError:
        return None
    for digits, _, _, scope, _, device in rows:
        if device == name and scope == "00":
            return str(ipaddress.IPv6Address(int(digits, 16)))
    return None


def route_to(host: str, port: int) -> str:
    """This machine's address on the way to another; raises ``OSError`` where there is no way. Sends nothing."""
    family, _, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.connect(target)
        return sock.getsockname()[0]


def is_loopback(host: str) -> bool:
    """Whether an address leads to the same machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False

"""Machines made of network namespaces: a link of a stated rate to each, and a host of data workers on it.

Needs root and ``tc``; where the kernel refuses, :class:`NoNamespaces` says why.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_BURST_BYTES = 1 << 18
_SWITCHED_BURST_BYTES = 72 << 10
"""Of links at a switch: few bytes beside what is timed, and no less than the kernel's segments: 64 KB, which count with
the headers of all their packets. Smaller ones have each segment cut up, and eight ranks then wait for the cores that do
it: a chain took twice as long."""
_HEADER_BYTES = 14 + 20 + 32
_NEW_NETWORK = 0x40000000
_numbers = itertools.count()
"""One for each: the kernel takes its time to remove a namespace."""


class NoNamespaces(Exception):
    """Network namespaces or ``tc`` are refused here."""


@dataclass(frozen=True)
class Machine:
    """A namespace that is linked to this one."""

    name: str
    address: str
    inside: tuple[str, ...]
    """What a command begins with to run there."""
    device: str
    """This side's end of the link."""

    @property
    def inner(self) -> str:
        """The other end, in the namespace."""
        return self.device[:-1] + "b"

    @property
    def sent(self) -> int:
        """Bytes that have come from it on this side's end, headers and all; from any process that sees this ``/sys``.

        A process that enters the namespace still does.
        """
        return int(Path(f"/sys/class/net/{self.device}/statistics/rx_bytes").read_text())

    @property
    def sent_payload(self) -> int:
        """The same without the headers of its packets, of Ethernet, IPv4 and TCP with time stamps."""
        packets = int(Path(f"/sys/class/net/{self.device}/statistics/rx_packets").read_text())
        return self.sent - _HEADER_BYTES * packets

    def enter(self) -> None:
        """Moves the calling process there, or its thread if it has several; raises ``OSError``."""
        with Path(f"/var/run/netns/{self.name}").open() as space:
            if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), _NEW_NETWORK):
                raise OSError(ctypes.get_errno(), f"setns of {self.name}")

    def shape(self, megabits: float, burst_bytes: int = _SWITCHED_BURST_BYTES) -> None:
        """Gives both ends of its link another rate, as at a switch."""
        for prefix, device in (((), self.device), (self.inside, self.inner)):
            _do(*prefix, "tc", "qdisc", "replace", "dev", device, *_shaped(megabits, burst_bytes))

    def cut(self) -> None:
        """Takes the link down: nothing is carried, and neither side hears of it."""
        _do("ip", "link", "set", self.device, "down")

    def mend(self) -> None:
        """Puts it up again."""
        _do("ip", "link", "set", self.device, "up")


def refusal() -> str:
    """Why network namespaces can't be made here; empty if they can."""
    try:
        with machines([1000.0]):
            return ""
    except NoNamespaces as error:
        return str(error)


@contextlib.contextmanager
def machines(megabits: Sequence[float]) -> Iterator[list[Machine]]:
    """Machines with links of so many Mbit/s, both ways.

    Raises:
        NoNamespaces: they can't be made here.
    """
    made: list[Machine] = []
    try:
        made.extend(_machine(next(_numbers), rate) for rate in megabits)
        yield made
    finally:
        for machine in made:
            subprocess.run(["ip", "netns", "del", machine.name], check=False, capture_output=True)


@contextlib.contextmanager
def switched(megabits: Sequence[float], burst_bytes: int = _SWITCHED_BURST_BYTES) -> Iterator[list[Machine]]:
    """Machines that reach each other by a switch, with a link of so many Mbit/s both ways from it to each.

    Args:
        megabits: of each link.
        burst_bytes: that a link takes at once: segments that are larger are cut into packets.

    Raises:
        NoNamespaces: they can't be made here.
    """
    number = next(_numbers)
    switch, net = f"sw{os.getpid()}{number}"[:15], _net(number)
    made: list[Machine] = []
    try:
        _switch(switch)
        for rate in megabits:
            made.append(_plugged(next(_numbers), switch, f"{net}.{len(made) + 2}"))
            made[-1].shape(rate, burst_bytes)
        yield made
    finally:
        _take_down(made, [switch])


@contextlib.contextmanager
def islands(counts: Sequence[int], megabits: float, uplink_megabits: float) -> Iterator[list[list[Machine]]]:
    """Machines at one switch an island, each switch with one link to a further one: rates in Mbit/s, both ways.

    Raises:
        NoNamespaces: they can't be made here.
    """
    number = next(_numbers)
    core, net = f"sw{os.getpid()}{number}"[:15], _net(number)
    switches = [core]
    every: list[Machine] = []
    try:
        _switch(core)
        found: list[list[Machine]] = []
        for count in counts:
            switches.append(f"sw{os.getpid()}{next(_numbers)}"[:15])
            _switch(switches[-1])
            _uplink(switches[-1], core, uplink_megabits)
            found.append([])
            for _ in range(count):
                every.append(_plugged(next(_numbers), switches[-1], f"{net}.{len(every) + 2}"))
                every[-1].shape(megabits)
                found[-1].append(every[-1])
        yield found
    finally:
        _take_down(every, switches)


def _net(number: int) -> str:
    return f"10.{200 + os.getpid() % 50}.{number}"


def _switch(name: str) -> None:
    _do("ip", "link", "add", name, "type", "bridge")
    _do("ip", "link", "set", name, "up")


def _uplink(switch: str, core: str, megabits: float) -> None:
    """Links two switches; the link goes when either does."""
    number = next(_numbers)
    ends = {f"su{os.getpid()}{number}a": switch, f"su{os.getpid()}{number}b": core}
    own, other = ends
    _do("ip", "link", "add", own, "type", "veth", "peer", "name", other)
    for end, at in ends.items():
        _do("ip", "link", "set", end, "master", at)
        _do("ip", "link", "set", end, "up")
        _do("tc", "qdisc", "add", "dev", end, *_shaped(megabits, _SWITCHED_BURST_BYTES))


def _take_down(made: Sequence[Machine], switches: Sequence[str]) -> None:
    for machine in made:
        subprocess.run(["ip", "netns", "del", machine.name], check=False, capture_output=True)
    for switch in switches:
        ports = Path(f"/sys/class/net/{switch}/brif")
        for port in [each.name for each in ports.iterdir()] if ports.is_dir() else []:
            subprocess.run(["ip", "link", "del", port], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", switch], check=False, capture_output=True)


def _plugged(number: int, switch: str, address: str) -> Machine:
    name, own = f"stoker-{os.getpid()}-{number}", f"sb{os.getpid()}{number}a"
    machine = Machine(name, address, ("ip", "netns", "exec", name), own)
    _do("ip", "netns", "add", name)
    try:
        _do("ip", "link", "add", own, "type", "veth", "peer", "name", machine.inner)
        _do("ip", "link", "set", machine.inner, "netns", name)
        _do("ip", "link", "set", own, "master", switch)
        _do("ip", "link", "set", own, "up")
        _do(*machine.inside, "ip", "addr", "add", f"{address}/24", "dev", machine.inner)
        _do(*machine.inside, "ip", "link", "set", machine.inner, "up")
        _do(*machine.inside, "ip", "link", "set", "lo", "up")
    except NoNamespaces:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        raise
    return machine


def _shaped(megabits: float, burst_bytes: int) -> tuple[str, ...]:
    return ("root", "tbf", "rate", f"{megabits:g}mbit", "burst", str(burst_bytes), "latency", "100ms")


def _machine(number: int, megabits: float) -> Machine:
    name, own, other = f"stoker-{os.getpid()}-{number}", f"sb{os.getpid()}{number}a", f"sb{os.getpid()}{number}b"
    net, inside = f"10.{200 + os.getpid() % 50}.{number}", ("ip", "netns", "exec", name)
    shaped = _shaped(megabits, _BURST_BYTES)
    _do("ip", "netns", "add", name)
    try:
        _do("ip", "link", "add", own, "type", "veth", "peer", "name", other)
        _do("ip", "link", "set", other, "netns", name)
        _do("ip", "addr", "add", f"{net}.1/24", "dev", own)
        _do("ip", "link", "set", own, "up")
        _do(*inside, "ip", "addr", "add", f"{net}.2/24", "dev", other)
        _do(*inside, "ip", "link", "set", other, "up")
        _do(*inside, "ip", "link", "set", "lo", "up")
        _do("tc", "qdisc", "add", "dev", own, *shaped)
        _do(*inside, "tc", "qdisc", "add", "dev", other, *shaped)
    except NoNamespaces:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        raise
    return Machine(name, f"{net}.2", inside, own)


def _do(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise NoNamespaces(f"`{' '.join(command)}`: {error}") from None
    if done.returncode:
        raise NoNamespaces(f"`{' '.join(command)}`: {done.stderr.strip()}")


class HostOn:
    """A host of data workers on a machine, until the context ends.

    Args:
        machine: where.
        secret: file of its secret.
        cores: that it lends.
        environ: variables besides those of this process.
    """

    def __init__(self, machine: Machine, secret: Path, cores: int, environ: Mapping[str, str] | None = None) -> None:
        self._command = [
            *machine.inside,
            sys.executable,
            "-m",
            "stoker",
            "cluster",
            "host",
            "--secret-file",
            str(secret),
        ]
        self._command += ["--cores", str(cores), "--listen"]
        self._environ = {**os.environ, **(environ or {})}
        self.address = f"{machine.address}:0"
        self.process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        process = subprocess.Popen([*self._command, self.address], stderr=subprocess.PIPE, text=True, env=self._environ)
        assert process.stderr is not None
        found = re.search(r" at (\S+) for", process.stderr.readline())
        assert found is not None
        self.address = found[1]
        return process

    def restart(self) -> None:
        """Starts another one at the same address, after the end of the first."""
        self.process.communicate()
        self.process = self._start()

    def __enter__(self) -> HostOn:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.communicate(timeout=20)


_SINK = """
import socket, sys
with socket.create_server((sys.argv[1], 5999)) as server:
    print("ready", flush=True)
    sock, _ = server.accept()
    data = bytes(1 << 20)
    try:
        while True:
            sock.sendall(data)
    except OSError:
        pass
"""


def carried(machine: Machine, seconds: float) -> float:
    """Bytes a second that the link from a machine carries in one bare TCP connection."""
    process = subprocess.Popen(
        [*machine.inside, sys.executable, "-c", _SINK, machine.address], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with socket.create_connection((machine.address, 5999), timeout=10.0) as sock:
            buffer, taken, begun = bytearray(1 << 20), 0, time.perf_counter()
            until = begun + seconds
            while time.perf_counter() < until:
                taken += sock.recv_into(buffer)
            return taken / (time.perf_counter() - begun)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()

"""The gateway's broker: a child that obtains processors of a cluster, and is started again when it dies.

What it has obtained is lost with it; hosts that still answer go on as long as they are connected.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import msgspec

from stoker.backends.remote.brokering import GRACE_S, BrokerSettings, Hosts, KnownHost, Lines, Wanted
from stoker.core.errors import WireError

_AGAIN_S, _MOST_AGAIN_S = 2.0, 30.0
"""A broker that ended is started again after this, later each time that it ended without any host."""
_ROOT = str(Path(__file__).resolve().parents[4])
# Named in a text: what imports Ray is never imported here.
_START = (
    "import sys; sys.path.append(sys.argv[5]); from stoker.backends.ray.broker import main; "
    "main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])"
)


class BrokerProcess:
    """Starts the broker, and knows the hosts that it has found.

    Args:
        settings: of it.
        certificate: of the gateway, in DER: the only one that hosts let in.
    """

    def __init__(self, settings: BrokerSettings, certificate: bytes) -> None:
        self._settings = settings
        self._certificate = certificate
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: Lines | None = None
        self._told: Wanted | None = None
        self._start_s = 0.0
        self._again_s = _AGAIN_S
        self._said: set[str] = set()
        self.grace_s = GRACE_S
        """See :attr:`Hosts.grace_s`."""
        self.hosts: dict[str, KnownHost] = {}
        """Those of this broker, by address."""

    def fileno(self) -> int:
        """Descriptor of what it says; -1 while there is none."""
        return self._lines.fileno() if self._lines is not None else -1

    def look(self, now_s: float, wanted: Wanted) -> None:
        """Starts it if it is missing, and tells it what is wanted if that is new."""
        if self._lines is None:
            if now_s < self._start_s or not wanted.workers:
                return
            self._lines = self._start()
        if wanted != self._told:
            try:
                self._lines.send(wanted)
                self._told = wanted
            except OSError:  # it is gone, as is read next, or stopped: half a line may be sent
                self._end(now_s)

    def _start(self) -> Lines:
        ours, theirs = socket.socketpair()
        with theirs:
            settings = msgspec.json.encode(self._settings).decode()
            arguments = (str(theirs.fileno()), str(os.getpid()), settings, self._certificate.hex(), _ROOT)
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, *arguments], stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),)
            )
        return Lines(ours)

    def hear(self, now_s: float) -> tuple[set[str], list[str]]:
        """What it has said since: addresses whose processors were taken back, and lines for the user."""
        gone, texts = set[str](), list[str]()
        if self._lines is None:
            return gone, texts
        try:
            heard = self._lines.receive(Hosts)
        except WireError as error:
            heard, texts = None, [str(error.args[0])]
        for message in heard or ():
            hosts = {host.address: host for host in message.hosts}
            self.grace_s = message.grace_s
            gone = (gone | (self.hosts.keys() - hosts.keys())) - hosts.keys()
            self.hosts = hosts
            texts += message.texts
            if hosts:
                self._again_s = _AGAIN_S
        if heard is None:
            self._end(now_s)
        new = [text for text in texts if text not in self._said]  # each broker finds the same again
        self._said.update(new)
        return gone, new

    def _end(self, now_s: float) -> None:
        lines, self._lines, self._told = self._lines, None, None
        if lines is not None:
            lines.sock.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self.hosts = {}
        self._start_s = now_s + self._again_s
        self._again_s = min(2.0 * self._again_s, _MOST_AGAIN_S)

"""The training process's side: starts the gateway, and is what crews ask for workers on other machines.

Nothing here waits for another machine, imports what the gateway needs, or starts a thread.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from stoker.backends.local import LocalBackend
from stoker.backends.remote.brokering import BrokerSettings
from stoker.backends.remote.queues import QueueTally
from stoker.backends.remote.settings import RemoteSettings
from stoker.core.processes.forking import Owner, at_fork
from stoker.core.processes.interrupts import interrupts_deferred
from stoker.feed.program import Program, WorkerIdentity
from stoker.feed.scaling import Observation
from stoker.feed.shell.backend import Template
from stoker.feed.shell.gateway import Gone, Said
from stoker.feed.transport.messages import Channel, MessageKind

_CLOSE_S = 2.0
"""How long a gateway may take to let a crew's slots go; one that takes longer is killed."""
_AGAIN_S = 1.0
"""A gateway that died is started again after this."""
_ROOT = str(Path(__file__).resolve().parents[3])
_START = (
    "import sys; sys.path.append(sys.argv[4]); from stoker.backends.remote.gateway.main import main; "
    "main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])"
)


class GatewayProcess:
    """The gateway of this process, started when a crew first needs it.

    Args:
        settings: of the gateway, as JSON.
        hidden: variables of the environment that it must not have.
    """

    def __init__(self, settings: str, hidden: tuple[str, ...] = ()) -> None:
        self._settings = settings
        self._hidden = hidden
        self._process: subprocess.Popen[bytes] | None = None
        self._control: Channel | None = None
        self._owner = Owner()
        self._started_s = float("-inf")

    @property
    def pid(self) -> int:
        """Process id; 0 while there is none."""
        return self._process.pid if self._process is not None else 0

    def serve(self, crew: socket.socket, ship: socket.socket, stall_timeout_s: float) -> int:
        """Hands a crew over; returns the process that has it. Raises ``OSError`` if there is none for now."""
        control = self._control or self._start()
        control.sock.setblocking(True)  # so that the descriptors are sent before they are closed here
        try:
            control.send(MessageKind.WANTED, pickle.dumps(stall_timeout_s), (crew.fileno(), ship.fileno()))
        except OSError:
            self.end(self.pid)
            raise
        finally:
            if self._control is not None:
                control.sock.setblocking(False)
        return self.pid

    def _start(self) -> Channel:
        now_s = time.monotonic()
        if now_s - self._started_s < _AGAIN_S:
            raise BlockingIOError("the gateway has just been started")
        self._started_s = now_s
        ours, theirs = socket.socketpair()
        with theirs, interrupts_deferred():
            environ: Mapping[str, str] = {k: v for k, v in os.environ.items() if k not in self._hidden}
            arguments = (str(theirs.fileno()), str(os.getpid()), self._settings, _ROOT)
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-c", _START, *arguments],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    env=environ,
                )
            except BaseException:
                ours.close()
                raise
        self._control = Channel(ours, blocking=False)
        at_fork(self._control.abandon)
        return self._control

    def end(self, pid: int) -> None:
        """Kills the one of this number; returns when it is gone, and so writes to no slot."""
        if pid != self.pid:
            return  # another crew found it dead, and there may be a new one
        process, self._process = self._process, None
        control, self._control = self._control, None
        if control is not None:
            control.close()
        if process is not None and self._owner.is_here:
            process.kill()
            process.wait()

    def close(self) -> None:
        """Ends it; it has no crew any more."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None and self._owner.is_here:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=_CLOSE_S)
        self.end(self.pid)


class RemoteGateway:
    """A crew's share of the gateway.

    Args:
        process: the gateway.
        stall_timeout_s: silence after which a worker counts as stuck.
    """

    def __init__(self, process: GatewayProcess, stall_timeout_s: float) -> None:
        self._process = process
        self._stall_timeout_s = stall_timeout_s
        self._channel: Channel | None = None
        self._served_by = 0
        self._tally = QueueTally()
        self.room = 0
        self.limit = ""

    @property
    def pid(self) -> int:
        """The process that has this crew; 0 while it has not been asked."""
        return self._served_by if self._channel is not None else 0

    def fileno(self) -> int:
        """Descriptor of what it says; -1 while it was not asked."""
        return self._channel.fileno() if self._channel is not None else -1

    def prepare(self, ship: Callable[[int], None]) -> None:
        """Has the program sent to all hosts, unless that was asked for."""
        if self._channel is not None:
            return
        ours, theirs = socket.socketpair()
        shipping, shipped = socket.socketpair()
        with theirs, shipping, shipped:
            try:
                self._served_by = self._process.serve(theirs, shipped, self._stall_timeout_s)
            except OSError:
                ours.close()
                return
            self._channel = Channel(ours, blocking=False)
            at_fork(self._channel.abandon)
            ship(shipping.fileno())

    def spawn(self, identity: WorkerIdentity) -> Channel:
        """Starts a worker on the host that has most room."""
        if self._channel is None:
            raise ConnectionError("there is no gateway")
        ours, theirs = socket.socketpair()
        with theirs:
            self._channel.sock.setblocking(True)
            try:
                body = pickle.dumps((identity.number, identity.worker_id))
                self._channel.send(MessageKind.SPAWN, body, (theirs.fileno(),))
            except OSError:
                ours.close()
                raise
            finally:
                self._channel.sock.setblocking(False)
        return Channel(ours, blocking=False)

    def observed(self, seen: Observation) -> None:
        """Says what the queue showed, once that is a whole window: CPUs of a cluster are divided by it."""
        window = self._tally.add(seen)
        if window is not None and self._channel is not None:
            with contextlib.suppress(OSError):  # what it says is its end
                self._channel.send(MessageKind.QUEUE, pickle.dumps(window))

    def end(self, number: int) -> None:
        """Ends a worker at once."""
        if self._channel is not None:
            with contextlib.suppress(OSError):
                self._channel.send(MessageKind.END, pickle.dumps(number))

    def hear(self) -> list[Said | tuple[Gone, ...]] | None:
        """What the gateway has said; None once it is gone."""
        assert self._channel is not None
        frames = self._channel.receive()
        if frames is None:
            self._lose()
            return None
        heard: list[Said | tuple[Gone, ...]] = []
        for frame in frames:
            said: Any = pickle.loads(frame.body)
            if frame.kind is MessageKind.ROOM:
                self.room, self.limit, texts = said
                heard += [Said(text) for text in texts]
            elif frame.kind is MessageKind.LEFT:
                heard.append(tuple(Gone(*gone) for gone in said))
        return heard

    def _lose(self) -> None:
        """The gateway has closed, which it does only by ending: waits for that."""
        channel, self._channel, self.room, self.limit = self._channel, None, 0, ""
        if channel is not None:
            channel.close()
        self._process.end(self._served_by)

    def close(self) -> None:
        """Returns when no slot is written any more: the gateway closes its end after that."""
        channel = self._channel
        if channel is None:
            return
        deadline = time.monotonic() + _CLOSE_S
        with contextlib.suppress(OSError):
            channel.sock.shutdown(socket.SHUT_WR)
            poll = select.poll()
            poll.register(channel, select.POLLIN)
            while (left_s := deadline - time.monotonic()) > 0 and poll.poll(1e3 * left_s):
                if channel.receive() is None:
                    self._channel, self.room = None, 0
                    channel.close()
                    return
        self._lose()


class RemoteBackend:
    """Workers on this machine, and on others where these are not enough.

    Args:
        remote: what the user chose: hosts with a secret, or a cluster.
        broker: of that cluster, if it is one.
        stall_timeout_s: silence after which a worker counts as stuck.
        hidden: variables of the environment that the gateway must not have.
        cache: settings of the run's cache as JSON, settled; empty without one.
    """

    def __init__(
        self,
        remote: RemoteSettings,
        stall_timeout_s: float,
        broker: BrokerSettings | None = None,
        hidden: tuple[str, ...] = (),
        cache: str = "",
    ) -> None:
        chosen: dict[str, Any] = {
            "workers": remote.workers, "variables": remote.env_names, "packages": remote.packages, "cache": cache,
        }  # fmt: skip
        if remote.uses_ray:
            chosen["broker"] = broker
        else:
            chosen |= {"addresses": remote.addresses, "secret_file": remote.secret_file}
        self.process = GatewayProcess(msgspec.json.encode(chosen).decode(), hidden)
        self._stall_timeout_s = stall_timeout_s
        self._local = LocalBackend()

    def start(self, program: Program, context: Any, num_rows: int) -> Template:
        """A template on this machine."""
        return self._local.start(program, context, num_rows)

    def reach(self, program: Program) -> RemoteGateway | None:
        """A share of the gateway; None for streams, whose shards are bound to their workers."""
        return None if program.is_iterable else RemoteGateway(self.process, self._stall_timeout_s)

    def close(self) -> None:
        """Ends the gateway."""
        self.process.close()

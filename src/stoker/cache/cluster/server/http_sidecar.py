"""The HTTP endpoint of a worker as a separate process, which ends with the worker in every case."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

from stoker.cache.cluster.client.client import PeerClient
from stoker.cache.cluster.client.client_settings import ClientSettings
from stoker.cache.cluster.server.http_door import Door, DoorMount, DoorSettings
from stoker.core.errors import ConfigError
from stoker.wire.secrets import DEFAULT_IDENTITY, load_secrets
from stoker.wire.tls import Certificate


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorPlan:
    """Settings of the endpoint; can be pickled, holds no secret.

    Attributes:
        host, port, hosts, mounts: as of :class:`DoorSettings`.
        token_file: with the token that requests carry, alone on a line.
        client: how it asks the cluster.
        node: the worker whose state ``/healthz`` and ``/metrics`` tell.
        certificate: by which it encrypts; None does not.
    """

    host: str
    port: int
    hosts: tuple[str, ...]
    mounts: Mapping[str, DoorMount]
    token_file: Path
    client: ClientSettings
    node: str
    certificate: Certificate | None = None

    def settings(self) -> DoorSettings:
        """With the token.

        Raises:
            ConfigError: the file holds none that can be used.
        """
        token = load_secrets(self.token_file).of(DEFAULT_IDENTITY)
        if token is None:
            raise ConfigError(f"`{self.token_file}` must hold the HTTP token alone on a line")
        return DoorSettings(
            host=self.host, port=self.port, token=token.decode("ascii", "replace"), hosts=self.hosts,
            mounts=self.mounts, certificate=self.certificate,
        )  # fmt: skip


@contextlib.contextmanager
def door_process(plan: DoorPlan) -> Generator[str]:
    """Runs the endpoint during the context; yields its address.

    Raises:
        ConfigError: it cannot listen there, or has no token.
    """
    plan.settings()
    context = get_context("spawn")  # the worker has threads by now
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(plan, theirs), name="stoker-door", daemon=True)
    process.start()
    theirs.close()
    try:
        try:
            address, fault = ours.recv()
        except EOFError:
            raise ConfigError("the HTTP endpoint must start, but its process ended at once; see above") from None
        if fault:
            raise ConfigError(f"`--http` must be an address that is free, got {address}: {fault}")
        yield address
    finally:
        ours.close()
        process.join()


def _serve(plan: DoorPlan, pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the worker handles Ctrl-C: while it drains, the door reports that
    client = PeerClient(plan.client)
    try:
        door = Door(plan.settings(), client, lambda: client.status(plan.node))
    except OSError as error:
        pipe.send((f"{plan.host}:{plan.port}", error.strerror or str(error)))
        return
    door.start()
    pipe.send((door.address, ""))
    with contextlib.suppress(EOFError, OSError):
        pipe.recv()  # returns when the worker ends, even if it is killed
    door.close()
    client.close()

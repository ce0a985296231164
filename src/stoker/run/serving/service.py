"""The service: models, the door before them, records and lines about both, from start to drain."""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import uvloop

from stoker import __version__
from stoker.core import host
from stoker.core.errors import ConfigError
from stoker.core.texts import escaped
from stoker.core.units import format_seconds
from stoker.records.events import Event, RunEnded, RunHeader, ServedWindow, VersionStarted
from stoker.records.runlog import RunLog, has_records, is_in_use
from stoker.run.serving.starting import Starter, StartPlan
from stoker.run.serving.template import ModelTemplate
from stoker.serve.admission import RequestAdmission
from stoker.serve.figures import FigureWindows, ModelFigures
from stoker.serve.http.door import ClientBounds, InferenceDoor, OpenModel
from stoker.serve.http.metrics import metrics_of
from stoker.serve.http.rest import Rest
from stoker.serve.http.server import Shutdown, serve_until_told
from stoker.serve.models.served_model import ServedModel
from stoker.serve.models.version import ModelVersion
from stoker.wire.control import CONTROL_FILE
from stoker.wire.secrets import create_secret

if TYPE_CHECKING:
    from stoker.serve.grpc.door import GrpcDoor

_SWEEP_S = 0.1
_WINDOW_S = 1.0
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, kw_only=True)
class ServicePlan:
    """What is served, where and how.

    Attributes:
        models: names and sources.
        start: how versions start.
        door: bounds on clients.
        host: to listen at.
        port: to listen at; 0 for a free one.
        grpc_port: for gRPC, as above; None for none.
        drain_s: that answers may take after SIGTERM.
        folder: of the run.
        argv: for the records.
    """

    models: Sequence[tuple[str, str]]
    start: StartPlan
    door: ClientBounds
    host: str
    port: int
    grpc_port: int | None
    drain_s: float
    folder: str
    argv: Sequence[str]

    def __post_init__(self) -> None:
        names = [name for name, _ in self.models]
        if len(set(names)) < len(names):
            raise ValueError(f"`MODEL` must have names that differ, got {', '.join(names)}; write NAME=SOURCE")
        if self.host not in _LOOPBACK and self.door.token is None:
            raise ValueError(
                f"`--host` must be of this machine alone without a token, got {self.host}; give --token-file, which "
                "`stoker cache secret FILE` writes"
            )


def serve(plan: ServicePlan, say: Callable[[str], None], show: Callable[[ServedWindow], None]) -> None:
    """Serves until SIGTERM or Ctrl-C, and then answers what has arrived.

    Args:
        plan: what and where.
        say: shows a line to people.
        show: shows what happened in the last second.

    Raises:
        ServingError: a model does not load.
        ConfigError: the address cannot be listened at.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_Service(plan, say, show).run())


class _Service:
    def __init__(self, plan: ServicePlan, say: Callable[[str], None], show: Callable[[ServedWindow], None]) -> None:
        self._plan = plan
        self._say = say
        self._show = show
        self._begun_s = time.monotonic()
        self._log = RunLog(plan.folder, functools.partial(_header, plan), notify=say)
        self._open: dict[str, OpenModel] = {}
        self._template = ModelTemplate()

    async def run(self) -> None:
        """Loads, serves, drains."""
        self._look_at_folder()
        sock = _listening(self._plan)
        try:
            for name, source in self._plan.models:
                await self._add(name, source)
            control = _control(self._log.folder)
            rest = Rest(self._open, __version__, functools.partial(metrics_of, self._open), control)
            door = InferenceDoor(self._open, self._plan.door, rest.application)
            over_grpc = await self._start_grpc(lambda: not rest.is_draining, door.admission)
            address = sock.getsockname()

            def told(again: bool) -> None:
                rest.is_draining = True
                door.admission.close()
                for opened in self._open.values():
                    opened.model.stop_change("the service ends")
                left = sum(version.num_pending for opened in self._open.values() for version in opened.model.versions)
                if again:
                    self._say(f"ends at once; requests without an answer: {left}")
                else:
                    self._say("draining: answers what has arrived; a second signal ends it at once")

            loop = asyncio.get_running_loop()
            windows = {name: FigureWindows(opened.figures, loop.time()) for name, opened in self._open.items()}
            watch = loop.create_task(self._watch(door, windows))
            shutdown = Shutdown(told)
            grpc_ends = loop.create_task(self._end_grpc(over_grpc, shutdown))
            _settle()
            try:
                with shutdown.by_signals():
                    self._say(
                        f"serving {', '.join(self._open)} at http://{_shown(address)} "
                        f"({_promised(self._plan.door.slo_s)}SIGTERM or Ctrl-C drains)"
                    )
                    await serve_until_told(door, sock, self._plan.drain_s, shutdown)
                    shutdown.begun.set()
                    await shutdown.unless_forced(self._drained(grpc_ends))
            finally:
                watch.cancel()
                grpc_ends.cancel()
            for name, window in windows.items():  # of less than a second, with what the drain answered
                self._tell(name, window, loop.time())
            self._record(RunEnded(t_s=self._now_s(), outcome="forced" if shutdown.forced.is_set() else "finished"))
        finally:
            sock.close()
            for opened in self._open.values():
                await opened.model.abort()
            self._template.close()
            self._log.close()

    def _look_at_folder(self) -> None:
        """Its records are its own: those of a service that runs stay, and those of one that has ended step aside."""
        folder = self._log.folder
        if is_in_use(folder):
            raise ConfigError(
                f"`--run-dir` must be a folder that no running service uses, got {folder}; name another one, or leave "
                "the option out for a fresh one"
            )
        if has_records(folder, ""):
            self._say(f"records of an earlier run in {folder} are kept there, under names that begin with earlier-")

    async def _start_grpc(self, is_ready: Callable[[], bool], admission: RequestAdmission) -> GrpcDoor | None:
        plan = self._plan
        if plan.grpc_port is None:
            return None
        from stoker.serve.grpc.door import GrpcDoor  # a tenth of a second, and threads, for those who ask for it

        door = GrpcDoor(self._open, plan.door, __version__, is_ready, admission)
        name = f"[{plan.host}]" if ":" in plan.host else plan.host
        try:
            port = await door.start(f"{name}:{plan.grpc_port}")
        except OSError as error:
            raise ConfigError(f"`--grpc-port` must be free at {plan.host}, got {plan.grpc_port}: {error}") from None
        self._say(f"gRPC at {name}:{port}")
        return door

    async def _add(self, name: str, source: str) -> None:
        figures = ModelFigures()
        starter = Starter(name, self._plan.start, self._template, figures, self._say)

        async def started(source: str, label: str) -> ModelVersion:
            version = await starter.version(source, label)
            self._record(
                VersionStarted(
                    t_s=self._now_s(), model=name, version=label, source=escaped(source),
                    platform=version.interface.platform, costs=list(version.costs),
                )
            )  # fmt: skip
            return version

        model = ServedModel(name, started, self._say)
        await model.start(source)
        self._open[name] = OpenModel(model, figures)

    async def _watch(self, door: InferenceDoor, windows: Mapping[str, FigureWindows]) -> None:
        """Looks after engines and slow clients, and tells what happened in each second."""
        loop = asyncio.get_running_loop()
        told_s = loop.time()
        while True:
            await asyncio.sleep(_SWEEP_S)
            door.sweep(loop.time())
            for opened in self._open.values():
                for version in opened.model.versions:
                    version.sweep()
            if loop.time() - told_s >= _WINDOW_S:
                told_s = loop.time()
                for name, window in windows.items():
                    self._tell(name, window, told_s)

    def _tell(self, name: str, windows: FigureWindows, now_s: float) -> None:
        found = windows.next(now_s)
        opened = self._open[name]
        versions = opened.model.versions
        event = ServedWindow(
            t_s=self._now_s(), model=name, version=opened.model.current.label,
            seconds=found.seconds, outcomes=dict(found.outcomes),
            p50_s=_known(found.p50_s), p99_s=_known(found.p99_s), batch=_known(found.batch),
            waiting=sum(version.policy.num_waiting for version in versions),
            engines=sum(version.pool.num_ready for version in versions), retries=found.retries,
            latencies=found.latencies,
        )  # fmt: skip
        if found.outcomes:  # an idle service does not fill a disk
            self._record(event)
        self._show(event)

    async def _end_grpc(self, over_grpc: GrpcDoor | None, shutdown: Shutdown) -> None:
        """Ends gRPC together with HTTP."""
        await shutdown.begun.wait()
        if over_grpc is not None:
            await over_grpc.stop(self._plan.drain_s)

    async def _drained(self, grpc_ends: asyncio.Task[None]) -> None:
        """Answers what is left; what engines cannot, within the time of the drain, is refused."""
        await grpc_ends
        try:
            async with asyncio.timeout(self._plan.drain_s):
                for opened in self._open.values():
                    await opened.model.close()
        except TimeoutError:
            self._say(f"not all requests were answered within {self._plan.drain_s:g} s")

    def _record(self, event: Event) -> None:
        self._log.on_event(event)

    def _now_s(self) -> float:
        return time.monotonic() - self._begun_s


def _settle() -> None:
    """Takes what is loaded out of the sight of the collector: it stays, and to look through it stops all requests."""
    gc.collect()
    gc.freeze()


def _control(folder: Path) -> Path:
    """The file with a fresh secret for changes of version, in the folder of the run, for this user alone."""
    path = folder / CONTROL_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        create_secret(path)
    except OSError as error:
        raise ConfigError(f"`--run-dir` must be a folder that can be written, got {folder}: {error.strerror}") from None
    return path


def _promised(slo_s: float) -> str:
    return f"--slo {format_seconds(slo_s)}; " if np.isfinite(slo_s) else ""


def _known(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _listening(plan: ServicePlan) -> socket.socket:
    family = socket.AF_INET6 if ":" in plan.host else socket.AF_INET
    try:
        return socket.create_server((plan.host, plan.port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(f"`--port` must be free at {plan.host}, got {plan.port}: {error.strerror}") from None


def _shown(address: tuple[object, ...]) -> str:
    name, port = address[:2]
    return f"[{name}]:{port}" if ":" in str(name) else f"{name}:{port}"


def _header(plan: ServicePlan) -> RunHeader:
    facts, now_s = host.read_host(), time.time()
    return RunHeader(
        run_id=f"serve-{os.getpid()}-{now_s:.0f}",  # another one in the same folder has other records
        started_unix_s=now_s,
        argv=[escaped(word) for word in plan.argv],
        cwd=escaped(os.getcwd()),
        python=sys.version.split()[0],
        stoker=__version__,
        torch="",
        numpy=np.__version__,
        hostname=socket.gethostname(),
        cores=facts.cores,
        memory_bytes=facts.memory_limit_bytes,
        accelerator="",
        config={"slo_s": _known(plan.door.slo_s), "engines": plan.start.version.pool.engines},
    )

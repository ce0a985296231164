"""The engines of one version of a model, from the service's side: started, given batches, ended, replaced."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
from collections.abc import Callable, Iterable, Sequence
from time import monotonic

import numpy as np
import numpy.typing as npt

from stoker.core.errors import ServingError, WireError
from stoker.core.slots.ring import Ring
from stoker.serve.processes.messages import (
    FRAMING,
    BatchDone,
    BatchRun,
    Birth,
    EngineMessage,
    EngineReady,
    Failure,
    pack,
    ready_of,
    unpack,
)
from stoker.serve.processes.pooled import GivenBatch, PooledEngine, PoolListener, PoolSettings
from stoker.wire.framing import Frame
from stoker.wire.polled import PolledChannel

StartModel = Callable[[socket.socket, bool, bytes], object]
"""Has the process started that loads the model.

Given its end of a socket, whether others answer meanwhile, and what the first one said that it was loaded from.
"""

_FORK_S = 10.0
"""A process with a loaded model that does not fork for so long hangs: it is replaced."""
_START_S = 30.0
"""The template forks in milliseconds, and imports before that where a library is new; later it hangs."""
_GRACE_S = 2.0
"""That a process has to end by itself where nobody waits for it."""
_END_S = 5.0
"""That the kernel may take to end a process that is killed."""
_BACK_OFF_S = (0.0, 0.0, 0.1, 0.5, 2.0, 5.0)
"""Before an engine or a model is started again, by how many were lost in a row before they were ready."""


class EnginePool:
    """The engines of one version, in the event loop of the service.

    Args:
        start_model: has the process started that loads the model.
        settings: sizes and times.
        listener: is given what engines did.
        subject: of messages, such as "`NAME` version 1".
        say: shows a line to people.
        behind: whether others answer requests while it starts.
    """

    def __init__(
        self, start_model: StartModel, settings: PoolSettings, listener: PoolListener, subject: str,
        say: Callable[[str], None], *, behind: bool = False,
    ) -> None:  # fmt: skip
        self.settings = settings
        # Of an engine: the batch that it computes, the next one, and the last one, of which answers are made.
        self.ring = Ring(0, settings.slot_bytes, 3 * settings.engines)
        self._memory: dict[int, npt.NDArray[np.uint8]] = {}
        self.engines: dict[int, PooledEngine] = {}
        self.idle: list[PooledEngine] = []
        """Ready and without a batch; the one used last at the end, since it is warmest."""
        self.lost = 0
        """Engines that ended without being asked to."""
        self.trouble = ""
        """Why there are no engines, where that is not over in a moment; empty where it is, and where there are some."""
        self._start_model = start_model
        self._listener = listener
        self._subject = subject
        self._behind = behind
        self._say = say
        self._loop = asyncio.get_running_loop()
        self._model: PolledChannel[EngineMessage] | None = None
        self._model_pidfd = -1
        self._asked_s = 0.0
        """When the process with the model was asked for."""
        self._loaded = False
        self._identity = b""
        """What the model was loaded from when it was first."""
        self._numbers = 0
        self._failures = 0
        self._closing = False
        self._first: asyncio.Future[EngineReady] = self._loop.create_future()
        self._timers: set[asyncio.TimerHandle] = set()

    async def start(self) -> EngineReady:
        """Loads the model, and returns what its first engine says when it is warm.

        Raises:
            ServingError: the model cannot be loaded, or is not ready in time.
        """
        self._start()
        try:
            return await asyncio.wait_for(asyncio.shield(self._first), self.settings.start_s)
        except TimeoutError:
            raise ServingError(
                f"{self._subject} must be warm within {self.settings.start_s:g} s; allow more with --start-time"
            ) from None

    @property
    def pids(self) -> list[int]:
        """Process ids: of the loaded model, then of its engines."""
        pidfds = [self._model_pidfd, *(each.pidfd for each in self.engines.values())]
        return [pid for pidfd in pidfds if pidfd >= 0 and (pid := _pid_of(pidfd)) > 0]

    @property
    def num_ready(self) -> int:
        """Engines that are warm."""
        return sum(each.ready is not None for each in self.engines.values())

    def memory(self, slot: int) -> npt.NDArray[np.uint8]:
        """The bytes of a slot."""
        found = self._memory.get(slot)
        if found is None:
            found = self._memory[slot] = self.ring.view(slot, self.ring.slot_bytes)
        return found

    @property
    def running_alone(self) -> list[PooledEngine]:
        """Engines that compute, and have nothing to do after that."""
        return [engine for engine in self.engines.values() if len(engine.given) == 1 and not engine.killed]

    def run(self, engine: PooledEngine, run: BatchRun, now_s: float, limit_s: float) -> None:
        """Gives an engine a batch, after the one that it has; the listener hears of its end."""
        if not engine.given:
            self.idle.remove(engine)
            engine.since_s = now_s
        engine.given.append(GivenBatch(run.slot, limit_s))
        try:
            engine.channel.send(EngineMessage.RUN, pack(run))
        except OSError:
            pass  # it has just ended, which is seen at its socket

    def kill_hung(self, now_s: float) -> None:
        """Ends engines that have computed for longer than any batch should take, and a model that does not fork."""
        for engine in list(self.engines.values()):
            if engine.killed:
                continue
            if engine.given and now_s - engine.since_s > engine.given[0].limit_s:
                self._say(f"{self._subject}: an engine hangs for {now_s - engine.since_s:.1f} s, it is replaced")
                self.kill(engine)
            elif engine.pidfd < 0:
                if now_s - engine.asked_s > _FORK_S:
                    self._say(f"{self._subject}: the process with the model does not answer, it is replaced")
                    self._kill_model()
                    return
            elif engine.ready is None and now_s - engine.asked_s > self.settings.start_s:
                self._say(f"{self._subject}: an engine is not warm after {self.settings.start_s:g} s, it is replaced")
                self.kill(engine)
        if self._model is not None and self._model_pidfd < 0 and now_s - self._asked_s > _START_S:
            self._model_lost()

    def kill(self, engine: PooledEngine) -> None:
        """Ends an engine at once, stopped or not."""
        engine.killed = True
        if engine.pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(engine.pidfd, signal.SIGKILL)

    async def close(self, *, at_once: bool = True) -> None:
        """Ends all processes; they have no batch any more.

        Args:
            at_once: by a signal; else they end by themselves if they can, behind those that answer requests.
        """
        self._closing = True
        for timer in self._timers:
            timer.cancel()
        if self._model is not None and self._model_pidfd < 0:
            self._hear_model()  # it may have told a moment ago; one that has not finds its socket closed
        pidfds = [self._forget(engine) for engine in list(self.engines.values())]
        if self._model is not None:
            pidfds.append(self._forget_model())
        ending = [pidfd for pidfd in pidfds if pidfd >= 0]
        if ending:
            await self._loop.run_in_executor(None, _end, ending, 0.0 if at_once else _GRACE_S)
        self._memory.clear()
        self.ring.close()
        if not self._first.done():
            self._first.cancel()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        self._model = PolledChannel(ours, FRAMING, blocking=False)
        self._loaded = False
        self._asked_s = monotonic()
        self._loop.add_reader(ours.fileno(), self._hear_model)
        with theirs:
            self._start_model(theirs, self._behind, self._identity)

    def _hear_model(self) -> None:
        assert self._model is not None
        try:
            frames = self._model.receive()
        except (OSError, WireError):
            frames = None
        if frames is None:
            self._model_lost()
            return
        for frame in frames:
            if frame.kind is EngineMessage.BORN:
                (self._model_pidfd,) = frame.fds
            elif frame.kind is EngineMessage.LOADED:
                self._loaded = True
                self._identity = self._identity or frame.body
                # Where others answer meanwhile, one after the other: two that warm at once would take two cores.
                for _ in range(1 if self._behind else self.settings.engines - len(self.engines)):
                    self._later(self._fork, 0.0)
            elif frame.kind in (EngineMessage.FAILED, EngineMessage.CHANGED):
                self._fail(unpack(frame.body, Failure).text, has_changed=frame.kind is EngineMessage.CHANGED)
            elif frame.kind is EngineMessage.FORKED:
                self._forked(frame)

    def _forked(self, frame: Frame[EngineMessage]) -> None:
        birth = unpack(frame.body, Birth)
        engine = self.engines.get(birth.number)
        if engine is None:
            for fd in frame.fds:
                os.close(fd)
        elif frame.fds:
            engine.pidfd = frame.fds[0]

    def _fork(self) -> None:
        if self._closing or not self._loaded or self._model is None or len(self.engines) >= self.settings.engines:
            return
        ours, theirs = socket.socketpair()
        self._numbers += 1
        engine = PooledEngine(self._numbers, PolledChannel(ours, FRAMING, blocking=False), asked_s=monotonic())
        self.engines[engine.number] = engine
        self._loop.add_reader(ours.fileno(), self._hear, engine)
        settings, ring = self.settings, self.ring
        # One that takes the place of another costs what that did: it is only warmed.
        measure_s = 0.0 if self._first.done() else settings.measure_s
        birth = Birth(
            engine.number, ring.slot_bytes * ring.num_slots, ring.slot_bytes, settings.max_batch, measure_s,
            self._behind or self.num_ready > 0,
        )  # fmt: skip
        # Sockets take a few hundred bytes at once: what is sent here never waits.
        with theirs, contextlib.suppress(OSError):
            self._model.send(EngineMessage.FORK, pack(birth), (theirs.fileno(), ring.fd))

    def _hear(self, engine: PooledEngine) -> None:
        try:
            frames = engine.channel.receive()
            for frame in frames or ():
                self._act(engine, frame)
        except (OSError, WireError):
            frames = None
        if frames is None:
            self._engine_lost(engine)

    def _act(self, engine: PooledEngine, frame: Frame[EngineMessage]) -> None:
        if frame.kind is EngineMessage.READY:
            engine.ready = ready_of(frame.body)
            self._failures = 0
            if self.trouble:
                self.trouble = ""
                self._say(f"{self._subject} answers again")
            self.idle.append(engine)
            if not self._first.done():
                self._first.set_result(engine.ready)
            self._behind = False
            if len(self.engines) < self.settings.engines:
                self._later(self._fork, 0.0)  # not here: what fails in it is no fault of this engine
            self._listener.engines_changed(self.num_ready)
            self._listener.engine_idle()
        elif frame.kind in (EngineMessage.FAILED, EngineMessage.CHANGED):
            self._fail(unpack(frame.body, Failure).text, has_changed=frame.kind is EngineMessage.CHANGED)
        elif frame.kind is EngineMessage.DONE:
            done = unpack(frame.body, BatchDone)
            self._listener.batch_done(engine, self._freed(engine), done)
        elif frame.kind is EngineMessage.BROKEN:
            self.ring.give_back(self._freed(engine))
            self._listener.batch_broken(engine, unpack(frame.body, Failure))
            self._listener.engine_idle()

    def _freed(self, engine: PooledEngine) -> int:
        """The slot of the batch that an engine has computed."""
        if not engine.given:
            raise WireError("an engine must answer once for each batch")
        slot = engine.given.popleft().slot
        engine.since_s = monotonic()
        if not engine.given and not engine.killed:
            self.idle.append(engine)
        return slot

    def _engine_lost(self, engine: PooledEngine) -> None:
        """Its socket is closed: it ends, and its memory is unmapped already, so that its slot can be used."""
        if self._closing:
            return
        self.lost += 1
        self.kill(engine)
        if (pidfd := self._forget(engine)) >= 0:
            os.close(pidfd)
        if engine.ready is None:
            self._failures += 1
        self._listener.engines_changed(self.num_ready)
        if engine.given:
            for each in engine.given:
                self.ring.give_back(each.slot)
            self._listener.batch_lost(engine)
        self._later(self._fork)

    def _forget(self, engine: PooledEngine) -> int:
        """Closes the connection to an engine; its pidfd, or -1 where it is not known."""
        del self.engines[engine.number]
        if engine in self.idle:
            self.idle.remove(engine)
        self._loop.remove_reader(engine.channel.fileno())
        engine.channel.close()
        pidfd, engine.pidfd = engine.pidfd, -1
        return pidfd

    def _kill_model(self) -> None:
        if self._model_pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._model_pidfd, signal.SIGKILL)

    def _forget_model(self) -> int:
        """Closes the connection to the process with the model; its pidfd, or -1 where it has not told."""
        assert self._model is not None, "it is there"
        self._loop.remove_reader(self._model.fileno())
        self._model.close()
        self._model = None
        self._loaded = False
        pidfd, self._model_pidfd = self._model_pidfd, -1
        return pidfd

    def _model_lost(self) -> None:
        """The process with the model has ended, and the kernel ends its engines; or there was none within its time."""
        if self._closing or self._model is None:
            return
        self._kill_model()
        pidfd = self._forget_model()
        if pidfd >= 0:
            os.close(pidfd)
        self._failures += 1
        if self._first.done() and not self._first.exception():
            if not self.trouble:
                self._say(f"{self._subject}: the process with the model has ended, it is started again")
            self._later(self._start)
        else:
            self._fail("the process that loads it has ended; what it said, or the kernel's log, says why")

    def _fail(self, text: str, *, has_changed: bool = False) -> None:
        """A model or an engine is not made: an error of the start, and later why there is no answer until one is.

        What did not start says no more: the end of its process may be heard of before it is closed.
        """
        reason = f"{self._subject}: {text}" if has_changed else f"{self._subject} must be a model that runs: {text}"
        if not self._first.done():
            self._first.set_exception(ServingError(reason))
        elif not self._closing and not self._first.cancelled() and not self._first.exception():
            self._failures = len(_BACK_OFF_S) if has_changed else self._failures + 1
            if reason != self.trouble:  # once, however often it is tried
                self.trouble = reason
                self._say(reason)
            if not self.num_ready:
                self._listener.engines_missing(reason)

    def _later(self, call: Callable[[], None], delay_s: float | None = None) -> None:
        """Starts something after a time, by default by what was lost; again and again where no file can be opened."""
        if delay_s is None:
            delay_s = _BACK_OFF_S[min(self._failures, len(_BACK_OFF_S) - 1)]

        def now() -> None:
            self._timers.discard(timer)
            if self._closing:
                return
            try:
                call()
            except OSError as error:
                self._failures += 1
                self._say(f"{self._subject}: a process cannot be started, {error}; it is tried again")
                self._later(call, _BACK_OFF_S[-1])

        timer = self._loop.call_later(delay_s, now)
        self._timers.add(timer)


def _end(pidfds: Sequence[int], grace_s: float) -> None:
    """Ends processes, which may be no children of this one: by a signal if they do not by themselves."""
    left = _running(pidfds, grace_s)
    for pidfd in left:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    _running(left, _END_S)
    for pidfd in pidfds:
        os.close(pidfd)


def _running(pidfds: Iterable[int], wait_s: float) -> set[int]:
    """Processes that have not ended after a time; as soon as all have, none."""
    running, until_s = set(pidfds), monotonic() + wait_s
    poll = select.poll()
    for pidfd in running:
        poll.register(pidfd, select.POLLIN)
    while running and (left_s := until_s - monotonic()) > 0.0:
        for pidfd, _ in poll.poll(1e3 * left_s):
            poll.unregister(pidfd)
            running.discard(pidfd)
    return running


def _pid_of(pidfd: int) -> int:
    """The process of a pidfd; -1 for one that has ended."""
    try:
        with open(f"/proc/self/fdinfo/{pidfd}", encoding="ascii") as facts:
            return next((int(line.split()[1]) for line in facts if line.startswith("Pid:")), -1)
    except OSError:
        return -1

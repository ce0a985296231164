"""The loop of one data worker: leases in, batches out.

Runs in a process forked from a template, single-threaded, until it receives a STOP or its socket closes. It owns the
mappings of the rings and a write-only view of the board; it decides nothing.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import resource
import time
import warnings
import zlib
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from stoker.core.host import RunDelay
from stoker.core.mishaps import trace_of
from stoker.core.slots.ring import Mapping
from stoker.core.slots.writers import FreshWriter, SlotWriter
from stoker.feed import fetch, streams
from stoker.feed.fetch import SampleError, ShardExhausted
from stoker.feed.program import Iteration, Program, Tier, WorkerIdentity, WorkItem
from stoker.feed.purity import probe, tiers
from stoker.feed.torch_private import ExceptionWrapper
from stoker.feed.transport.board import BoardWriter
from stoker.feed.transport.messages import (
    Channel,
    Frame,
    LeaseFlag,
    LeaseHeader,
    MessageKind,
    Place,
    ReadyHeader,
    unpack_lease,
)
from stoker.feed.transport.pack import Packed, pack, place
from stoker.feed.worker.arena import SlotArena

_INLINE_SKELETON_BYTES = 1 << 15
"""Longer skeletons (batches of strings or bytes) go to the slot as well, not through the socket."""
_CHECKED_BYTES = 4096
"""Bytes of each buffer in the checksum of a batch that may have to be repeated."""
_WORD_S = 1.0
"""How long a worker with large samples waits for GO or PIN; the probe makes one sample meanwhile."""


class _Start(NamedTuple):
    """Clocks at the beginning of an item."""

    at_s: float
    idle_s: float
    """Time the worker had nothing to do before."""
    cpu_s: float
    delay_s: float | None
    """Time it has waited for a core so far; None if the kernel does not report it."""


class DataWorker:
    """One data worker.

    Args:
        program: what the loader declares.
        identity: who this worker is.
        channel: its socket to the training process.
        board: where it writes which sample it is on.
    """

    def __init__(self, program: Program, identity: WorkerIdentity, channel: Channel, board: BoardWriter) -> None:
        self._program = program
        self._identity = identity
        self._channel = channel
        self._board = board
        self._rings: dict[int, tuple[Mapping, int]] = {}  # generation -> mapping, bytes of a slot
        self._leases: deque[tuple[LeaseHeader, bytes] | Iteration] = deque()
        self._iteration: Iteration | None = None
        self._fetcher: fetch.Fetcher | None = None
        self._init_failure: ExceptionWrapper | None = None
        self._stopping = False
        self._idle_since = time.monotonic()
        self._memory = PrivateMemory()
        self._delay = RunDelay()
        self._arena = SlotArena()
        self._handlers: dict[MessageKind, Callable[[Frame], None]] = {
            MessageKind.LEASE: self._on_lease,
            MessageKind.RING: self._on_ring,
            MessageKind.FORGET: self._on_forget,
            MessageKind.ITERATION: self._on_iteration,
            MessageKind.STOP: self._on_stop,
            MessageKind.PROBE: self._on_probe,
            MessageKind.STAGE: self._on_stage,
            MessageKind.GO: self._on_go,
            MessageKind.PIN: self._on_pin,
        }
        self._waits = self._heard = False
        self._probed = False
        self._stage: Callable[[Any, int], Any] | None = None

    def run(self) -> None:
        """Serves leases until a STOP, or until the training process is gone."""
        self._arena.install()
        streams.watch_reads()
        while True:
            if not self._leases:
                if self._stopping or not self._receive(wait=True):
                    return
                continue
            if not self._receive(wait=False):
                return
            if self._leases:
                first = self._leases.popleft()
                if isinstance(first, Iteration):
                    self._begin(first)
                else:
                    self._serve(first[0], pickle.loads(first[1]))

    def _receive(self, *, wait: bool) -> bool:
        frames = self._channel.receive(wait=wait)
        if frames is None:
            return False
        for frame in frames:
            self._handlers[frame.kind](frame)
        return True

    def _on_lease(self, frame: Frame) -> None:
        header, body = unpack_lease(frame.body)
        self._leases.append((header, bytes(body)))

    def _on_forget(self, _: Frame) -> None:
        waiting, self._leases = self._leases, deque()
        for entry in waiting:
            if isinstance(entry, Iteration):
                self._leases.append(entry)
            else:
                self._channel.send(MessageKind.RETURNED, entry[0].pack(b""))

    def _on_stop(self, _: Frame) -> None:
        self._stopping = True

    def _on_ring(self, frame: Frame) -> None:
        generation, slot_bytes, num_slots = pickle.loads(frame.body)
        (fd,) = frame.fds
        try:
            self._rings[generation] = (Mapping(fd, slot_bytes * num_slots), slot_bytes)
        finally:
            os.close(fd)
        for old in [number for number in self._rings if number < generation - 1]:
            self._rings.pop(old)[0].close()

    def _on_stage(self, frame: Frame) -> None:
        self._stage = pickle.loads(frame.body) if frame.body else None

    def _on_go(self, _: Frame) -> None:
        self._waits, self._heard = False, True

    def _on_pin(self, _: Frame) -> None:
        """Becomes a pinned worker, if a pinned worker would have made the same so far."""
        self._waits, self._heard = False, True
        iteration, fetcher = self._iteration, self._fetcher
        can = isinstance(fetcher, fetch.ElasticFetcher) and not self._probed and fetcher.give_up()
        if can and iteration is not None:
            streams.adopt(())
            self._iteration = replace(iteration, tier=Tier.PINNED)
            self._fetcher = fetch.create_fetcher(self._program, self._iteration)
        self._channel.send(MessageKind.PINNED, pickle.dumps(can))

    def _on_iteration(self, frame: Frame) -> None:
        iteration: Iteration = pickle.loads(frame.body)
        if self._leases:  # items drawn earlier are made first
            self._leases.append(iteration)
        else:
            self._begin(iteration)

    def _begin(self, iteration: Iteration) -> None:
        before, self._iteration = self._iteration, iteration
        if before is None or before.base_seed != iteration.base_seed:  # torch would have started a new worker
            self._init_as_torch(iteration.base_seed)
        if self._init_failure is None:
            # After `worker_init_fn`, which may give transforms new generators.
            streams.adopt(tiers.generators_of(self._program) if iteration.seeds_generators else ())
            self._fetcher = self._create_fetcher(iteration)

    def _init_as_torch(self, base_seed: int) -> None:
        fetch.seed_as_torch(base_seed, self._identity.worker_id)
        fetch.announce_worker(self._program, self._identity.worker_id, base_seed)
        if self._program.worker_init_fn is None:
            return
        try:
            fetch.init_worker(self._program.worker_init_fn, self._identity.worker_id)
        except Exception:
            self._init_failure = ExceptionWrapper(where=self._where)

    def _create_fetcher(self, iteration: Iteration) -> fetch.Fetcher | None:
        try:
            drew = self._fetcher is not None and self._fetcher.drew  # else each iteration's first batch is made twice
            return fetch.create_fetcher(self._program, iteration, self._arena, drew=drew)
        except Exception:
            self._init_failure = ExceptionWrapper(where=self._where)
            return None

    @property
    def _where(self) -> str:
        return f"in DataLoader worker process {self._identity.worker_id}"

    def _on_probe(self, frame: Frame) -> None:
        role, item, other = pickle.loads(frame.body)
        iteration = self._iteration
        assert iteration is not None
        with _warnings_unseen():
            self._look(lambda: self._probe(role, item, other, iteration))

    def _probe(self, role: probe.Role, item: WorkItem, other: WorkItem | None, iteration: Iteration) -> None:
        if role == "beside":  # it delivers no batch, but must have made one
            if self._fetcher is not None:
                with contextlib.suppress(SampleError):
                    self._fetcher.fetch(0, item, self._nowhere)
            self._send_evidence(item)
            return
        result = probe.run_apart(self._program, iteration, item, other, self._wait_for_leave)
        self._channel.send(MessageKind.PROBED, pickle.dumps(("apart", result)))

    def _wait_for_leave(self, sample_bytes: int) -> None:
        """Reports the size of a probe's large samples, and waits for GO."""
        self._waits = True
        self._channel.send(MessageKind.SIZED, pickle.dumps(sample_bytes))
        while self._waits:
            if not self._receive(wait=True):
                raise ConnectionError

    def _nowhere(self, position: int) -> None:
        """Notes no position: a probe's death must not be blamed on a sample."""

    def _serve(self, header: LeaseHeader, item: WorkItem) -> None:
        made_bytes = self._make(header, item)
        if header.flags & LeaseFlag.DIGEST and self._hear(self._unit_bytes(made_bytes, item)) and not self._is_pinned:
            self._send_evidence(item)
        self._idle_since = time.monotonic()

    def _unit_bytes(self, made_bytes: int, item: WorkItem) -> int:
        """Approximate bytes of one sample, or of all that the dataset makes at once."""
        return made_bytes // max(1, len(item.indices)) if fetch.makes_one_by_one(self._program) else made_bytes

    def _hear(self, unit_bytes: int) -> bool:
        """Handles the frames that have arrived; False when the training process is gone.

        Large samples may not be compared at all. This worker then becomes a pinned one, which it can't once it has
        made samples for a comparison: so it waits for the decision.
        """
        self._waits = unit_bytes >= probe.LARGE_SAMPLE_BYTES and not self._heard
        deadline = time.monotonic() + _WORD_S
        while self._receive(wait=False):
            left_s = deadline - time.monotonic()
            if not self._waits or self._stopping or left_s <= 0:
                return True
            self._channel.await_frames(left_s)
        return False

    def _make(self, header: LeaseHeader, item: WorkItem) -> int:
        """Makes and sends a batch; returns its payload bytes. Keeps nothing of it."""
        start = self._start()
        writer = self._writer(header)
        packed, failure, check = None, b"", 0
        try:
            batch = self._fetch(header, item, writer)
            if self._stage is not None:
                check = self._check(lambda: pack(batch))  # before the stage, which a repetition may lack
                with _warnings_unseen():  # the loop's calls warned before they moved here
                    batch = self._stage(batch, self._seed_of(header.seq))
            packed = pack(batch)
        except ShardExhausted:
            self._channel.send(MessageKind.ENDED, header.pack(b""))
        except _UserError as error:
            failure = error.body
        except Exception as error:  # the batch can't be pickled
            failure = _wrap(error, self._where, -1)
        if header.flags & LeaseFlag.DIGEST and self._fetcher is not None:
            self._channel.send(MessageKind.PROBED, pickle.dumps(("drew", self._fetcher.drew)))
        if packed is not None:
            self._send(header, packed, writer, start, check or self._check(lambda: packed))
        elif failure:
            self._board.clear()
            self._channel.send(MessageKind.FAILED, header.pack(failure))
        if isinstance(writer, FreshWriter):
            writer.close()
        return packed.payload_bytes if packed is not None else 0

    def _start(self) -> _Start:
        now_s = time.monotonic()
        return _Start(now_s, now_s - self._idle_since, time.process_time(), self._delay.seconds())

    @property
    def _is_pinned(self) -> bool:
        return self._iteration is not None and self._iteration.tier is Tier.PINNED

    def _send_evidence(self, item: WorkItem) -> None:
        self._probed = True
        if self._iteration is None or self._fetcher is None:  # worker_init_fn raised: nothing to compare
            self._channel.send(MessageKind.PROBED, pickle.dumps(("beside", probe.NOTHING)))
            return
        with _warnings_unseen():
            self._look(lambda: self._send_digests(item))

    def _send_digests(self, item: WorkItem) -> None:
        assert self._iteration is not None
        assert self._fetcher is not None
        result = probe.run_beside(self._program, self._iteration, item, drew=self._fetcher.drew)
        self._channel.send(MessageKind.PROBED, pickle.dumps(("beside", result)))

    def _look(self, look: Callable[[], None]) -> None:
        """Compares samples; sends stoker's own errors to the training process, which reports them."""
        try:
            look()
        except ConnectionError:  # the training process is gone
            raise
        except Exception as error:
            self._channel.send(MessageKind.PROBED, pickle.dumps(("failed", trace_of(error))))

    def _fetch(self, header: LeaseHeader, item: WorkItem, writer: SlotWriter | None) -> Any:
        if self._init_failure is not None:
            raise _UserError(pickle.dumps((self._init_failure, -1)))
        assert self._fetcher is not None
        self._board.begin(header.seq)
        self._arena.use(writer)
        try:
            return self._fetcher.fetch(header.seq, item, self._board.at)
        except SampleError as error:
            cause = error.__cause__
            assert isinstance(cause, Exception)
            raise _UserError(_wrap(cause, self._where, error.position)) from None
        finally:
            self._arena.use(None)

    def _writer(self, header: LeaseHeader) -> SlotWriter | None:
        """Where to build the batch: in its slot, else in a separate memfd; None for ordinary memory."""
        if header.flags & LeaseFlag.REPLAY:
            return None
        found = self._rings.get(header.ring)
        if found is not None and header.slot >= 0:
            mapping, slot_bytes = found
            return SlotWriter(mapping.view(header.slot * slot_bytes, slot_bytes))
        return None if header.flags & LeaseFlag.INLINE else FreshWriter()

    def _send(
        self,
        header: LeaseHeader,
        packed: Packed,
        writer: SlotWriter | None,
        start: _Start,
        check: int,
    ) -> None:
        where, payload, skeleton, fds, inline = Place.SLOT, 0, b"", (), None
        if not header.flags & LeaseFlag.REPLAY:
            where, payload, skeleton, fds, inline = self._store(packed, writer, header.flags)
        self._board.clear()
        done = time.monotonic()
        delay_s = self._delay.seconds()
        stall_s = delay_s - start.delay_s if delay_s is not None and start.delay_s is not None else -1.0
        wall_s, cpu_s = done - start.at_s, time.process_time() - start.cpu_s
        ready = ReadyHeader(
            header.seq, header.generation, header.ring, header.slot, where, payload, len(skeleton), wall_s, cpu_s,
            start.idle_s, done, self._memory.bytes, check, stall_s,
        )  # fmt: skip
        self._idle_since = time.monotonic()
        self._channel.send(MessageKind.READY, ready.pack() + skeleton, fds, tail=inline)
        for fd in fds:
            os.close(fd)
        self._look_at_memory(done)  # after sending: the batch need not wait for it

    def _seed_of(self, seq: int) -> int:
        assert self._iteration is not None
        return self._iteration.seed_of(seq)

    def _check(self, packed: Callable[[], Packed]) -> int:
        """The checksum of a batch that may have to be repeated; 0 if there is none, or computing it fails."""
        with contextlib.suppress(Exception):  # sending reports what can't be packed
            return check_of(packed()) if self._is_pinned else 0
        return 0

    def _look_at_memory(self, now_s: float) -> None:
        """Retires before exceeding its budget: a fresh fork of the template shares what this worker has copied."""
        elastic = self._iteration is not None and self._iteration.tier is Tier.ELASTIC
        budget = self._iteration.worker_memory_bytes if self._iteration is not None and elastic else 0
        is_near = False
        with contextlib.suppress(Exception):  # a failed measurement must not end the worker
            self._memory.refresh(now_s, budget)
            is_near = self._memory.is_near(budget)
        if not budget or self._stopping or not is_near:
            return
        self._on_forget(Frame(MessageKind.FORGET, b""))
        self._stopping = True
        self._channel.send(MessageKind.RETIRING, pickle.dumps(self._memory.bytes))

    def _store(
        self, packed: Packed, writer: SlotWriter | None, flags: LeaseFlag
    ) -> tuple[Place, int, bytes, tuple[int, ...], memoryview | None]:
        """Stores the batch; returns place, payload bytes, skeleton for the frame, descriptors, inline payload."""
        if writer is not None and (skeleton := _fill(packed, writer)) is not None and writer.size_bytes:
            return _placed(writer, skeleton)
        size = packed.payload_bytes + len(packed.skeleton) + 32 * len(packed.entries) + _INLINE_SKELETON_BYTES
        if size >= _INLINE_SKELETON_BYTES * 2 and not flags & LeaseFlag.INLINE:
            with contextlib.suppress(OSError):  # limits forbid a memfd: the socket is slower, but always there
                own = FreshWriter(size)
                skeleton = _fill(packed, own)
                assert skeleton is not None
                return _placed(own, skeleton)
        inline = SlotWriter(np.empty(size, np.uint8))
        skeleton = place(packed, inline)
        assert skeleton is not None
        view: Any = inline.view
        return Place.INLINE, inline.used_bytes, skeleton, (), memoryview(view)[: inline.used_bytes]


def _placed(writer: SlotWriter, skeleton: bytes) -> tuple[Place, int, bytes, tuple[int, ...], memoryview | None]:
    """What :meth:`DataWorker._store` returns for a batch in a slot or in a separate memfd."""
    if isinstance(writer, FreshWriter):
        return Place.OWN_MEMORY, writer.used_bytes, skeleton, (writer.take(),), None
    return Place.SLOT, writer.used_bytes, skeleton, (), None


@contextlib.contextmanager
def _warnings_unseen() -> Generator[None]:
    """Hides warnings that are or were shown elsewhere; filters stay in force."""
    show, warnings.showwarning = warnings.showwarning, _show_nothing
    try:
        yield
    finally:
        warnings.showwarning = show


def _show_nothing(*_: object, **__: object) -> None:
    pass


class _UserError(Exception):
    def __init__(self, body: bytes) -> None:
        super().__init__()
        self.body = body


def _wrap(error: Exception, where: str, position: int) -> bytes:
    wrapper = ExceptionWrapper((type(error), error, error.__traceback__), where=where)
    try:
        return pickle.dumps((wrapper, position))
    except Exception:  # of a class that the training process could not find either
        stand_in = RuntimeError(f"{type(error).__qualname__}: {error}")
        wrapper = ExceptionWrapper((RuntimeError, stand_in, error.__traceback__), where=where)
        return pickle.dumps((wrapper, position))


def _fill(packed: Packed, writer: SlotWriter) -> bytes | None:
    """Places the buffers, followed by a skeleton too long for the frame; None when they do not fit."""
    skeleton = place(packed, writer)
    if skeleton is None or len(skeleton) <= _INLINE_SKELETON_BYTES:
        return skeleton
    offset = writer.reserve(len(skeleton) + 8)
    if offset is None:
        return None
    writer.view[offset : offset + len(skeleton)] = np.frombuffer(skeleton, np.uint8)
    end = offset + len(skeleton)
    writer.view[end : end + 8] = np.frombuffer(len(skeleton).to_bytes(8, "little"), np.uint8)
    return b""


def check_of(packed: Packed) -> int:
    """A cheap 32-bit checksum of a batch: its skeleton and the first 4 KiB of each buffer."""
    check = zlib.crc32(packed.skeleton)
    for entry in packed.entries:
        check = zlib.crc32(entry.head(_CHECKED_BYTES), check)
    return check


_FIRST_MEASURE_S = 0.5
"""A new worker shares its parent's memory; walking its page tables (10 ms) would only delay its first batch."""


_NEAR_FRAC, _GROWN_FRAC = 0.8, 0.1
"""Shares of the budget: a worker retires above the first (it is rarely measured), if it has grown by the second."""


class PrivateMemory:
    """The worker's own memory (not shared with its siblings), measured rarely enough to cost under 1 %.

    The kernel counts page faults, and memory can't grow without them: so an early measurement is made only when the
    faults since the last one would be enough to bring the worker near its budget.
    """

    def __init__(self) -> None:
        self._next_s = time.monotonic() + _FIRST_MEASURE_S
        self._soon_s = 0.0
        self._faults = 0  # a forked process counts from zero
        self._first_bytes: int | None = None
        self.bytes = 0
        """Private bytes when last measured; 0 before that."""

    def is_near(self, budget_bytes: int) -> bool:
        """Whether the budget is nearly used up, by growth and not from the start."""
        grown = self.bytes - (self._first_bytes or 0)
        return self.bytes > _NEAR_FRAC * budget_bytes and grown > _GROWN_FRAC * budget_bytes

    def refresh(self, now_s: float, budget_bytes: int) -> None:
        """Measures again if the last measurement is old, or the budget (0: none) may be nearly used up."""
        near = _NEAR_FRAC * budget_bytes
        most = self.bytes + (_page_faults() - self._faults) * mmap.PAGESIZE
        if self._first_bytes is None:  # after its first item: the least that it needs
            self._first_bytes = self._measure(now_s) if most >= near / 4 else most
            return
        doubtful = self.bytes < near <= most and (now_s >= self._soon_s or most >= (near + budget_bytes) / 2)
        if doubtful or now_s >= self._next_s:
            self._measure(now_s)

    def _measure(self, now_s: float) -> int:
        begun = time.monotonic()
        self.bytes = read_private_bytes("self")
        cost_s = time.monotonic() - begun
        self._next_s, self._soon_s = now_s + max(0.2, 100 * cost_s), now_s + 10 * cost_s
        self._faults = _page_faults()
        return self.bytes


def _page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def read_private_bytes(pid: int | str) -> int:
    """Private memory of a process in bytes; 0 when it is gone or the kernel does not report it."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
            lines = file.read().splitlines()
    except OSError:
        return 0
    kib = [int(line.split()[1]) for line in lines if line.startswith(("Private_Clean:", "Private_Dirty:"))]
    return sum(kib) * 1024

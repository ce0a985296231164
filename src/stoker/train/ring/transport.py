"""Exchanges of a process group over stoker's sockets: what hooks, the library and the probe call.

The threads hold nothing of :class:`RingExchange` itself, so that one that a program forgets is closed when it is
collected, and at exit.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as distributed

from stoker.core.errors import ExchangeError
from stoker.train.ring import passes
from stoker.train.ring.addresses import own_address
from stoker.train.ring.blocks import DEFAULT_BLOCK_BYTES, block_elements, chain_block_bytes, sum_block_bytes
from stoker.train.ring.engine import FLAT, WATCH, ExchangeEngine, ExchangeJob
from stoker.train.ring.islands import (
    ACROSS,
    BACK,
    WITHIN,
    IslandSum,
    checked_islands,
    island_block_bytes,
    island_rings,
)
from stoker.train.ring.links import PassOpening, RingLink
from stoker.train.ring.meeting import GATHERED_BYTES, Assembly, meet
from stoker.train.ring.tensors import FlatBuffer, memory_of
from stoker.train.ring.watching.blame import RankFault

MIN_BLOCK_BYTES, MAX_BLOCK_BYTES = 1 << 10, 64 << 20


class RingExchange:
    """Sums and copies over the sockets of one rank; the same calls come in the same order on all ranks.

    Args:
        assembly: the ranks; connecting is a collective of theirs.
        order: of the ring, places in the assembly; by default as they are, island by island.
        islands: places that are close to each other, for :meth:`start_by_islands`; two at least, of one size from 2 on.
        timeout_s: of the process group: longest time in which an exchange does not move.
        block_bytes: of what is sent on as soon as it is there, at most; small tensors and chains have smaller blocks.
        find_address: finds the address to listen on.
        further: rings that this rank is in besides, by name, for :meth:`carry_out`; places in the assembly.

    Attributes:
        step: of training, as the caller counts; errors name it.
        hosts: the machine of each rank; alike for ranks of one. Empty with one rank.
        order: of the ring: ranks by place in it.
        islands: as passed; empty for none.

    Raises:
        ExchangeError: the ranks can't connect.
        ValueError: an argument breaks its rule.
    """

    def __init__(
        self, assembly: Assembly, *, timeout_s: float, order: Sequence[int] | None = None,
        islands: Sequence[Sequence[int]] = (), block_bytes: int = DEFAULT_BLOCK_BYTES,
        find_address: Callable[[], str] = own_address, further: Mapping[str, Sequence[int]] | None = None,
    ) -> None:  # fmt: skip
        ranks = list(assembly.ranks)
        self.islands: tuple[tuple[int, ...], ...] = checked_islands(islands, len(ranks)) if islands else ()
        placed = [place for island in self.islands for place in island] or list(range(len(ranks)))
        order = placed if order is None else list(order)
        if sorted(order) != list(range(len(ranks))):
            raise ValueError(f"`order` must hold each place of {len(ranks)} once, got {order}")
        if not MIN_BLOCK_BYTES <= block_bytes <= MAX_BLOCK_BYTES:
            raise ValueError(f"`block_bytes` must be {MIN_BLOCK_BYTES} to {MAX_BLOCK_BYTES}, got {block_bytes}")
        self.step = 0
        self.rank = assembly.rank
        self.order = tuple(order)
        self.size = len(ranks)
        self.block_bytes = block_bytes
        self.hosts: list[str] = []
        self._engine: ExchangeEngine | None = None
        self._further = dict(further or {})
        self._close: Callable[[], object] = lambda: None
        self._scratch = bytearray()
        if self.size > 1:
            sockets, self.hosts = meet(assembly, self._rings, find_address, timeout_s)
            self._engine = ExchangeEngine(sockets, ranks, timeout_s)
            self._close = weakref.finalize(self, self._engine.close)

    def start(self, flat: torch.Tensor, name: str) -> torch.futures.Future[torch.Tensor]:
        """Sums a tensor over all ranks in place, as a future of it; all ranks get the same bits.

        Args:
            flat: contiguous, of one dimension, on the CPU; any float, integer or complex dtype, any length.
            name: of what it is, alike on all ranks; errors name it.

        Returns:
            A future of ``flat``. Waiting for it raises :class:`ExchangeError` if a rank is lost. What is chained to it
            runs in the thread of the exchanges, and must not wait for another one.

        Raises:
            ValueError: the tensor can't be summed.
        """
        return self._start(flat, name, self._sum)

    def start_by_islands(self, flat: torch.Tensor, name: str) -> torch.futures.Future[torch.Tensor]:
        """As :meth:`start`, within islands and across them; by the ring where there are no islands."""
        return self._start(flat, name, self._sum_by_islands if self.islands else self._sum)

    def _start(
        self, flat: torch.Tensor, name: str, work: Callable[[FlatBuffer, str], Callable[[int], object]]
    ) -> torch.futures.Future[torch.Tensor]:
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()

        def finish(error: ExchangeError | None) -> None:
            if error is None:
                future.set_result(flat)
            else:
                future.set_exception(error)  # type: ignore[arg-type]  # torch declares a result there

        self._submit(name, work(FlatBuffer(flat), name), finish)
        return future

    def all_reduce(self, tensor: torch.Tensor, name: str = "all_reduce") -> None:
        """Sums a tensor of any shape over all ranks in place, and waits for it. Errors as :meth:`start`."""
        flat = tensor.detach().reshape(-1)
        self._wait(self._submit(name, self._sum(FlatBuffer(flat), name)))
        if flat.data_ptr() != tensor.data_ptr():
            tensor.detach().copy_(flat.view(tensor.shape))

    def broadcast(self, tensors: Sequence[torch.Tensor], source: int = 0, name: str = "broadcast") -> None:
        """Copies tensors of one rank to all others, block by block along a chain, and waits for it.

        Args:
            tensors: of the same shapes and dtypes on all ranks, on the CPU; overwritten on all but the source.
            source: place of the rank in the group.
            name: as for :meth:`start`.

        Raises:
            ExchangeError: a rank is lost.
            ValueError: a tensor is not on the CPU, or there is no such rank.
        """
        if not 0 <= source < self.size:
            raise ValueError(f"`source` must be 0 to {self.size - 1}, got {source}")
        for tensor in tensors:
            if tensor.device.type != "cpu":
                raise ValueError(f"`tensors` must be on the CPU, got one on {tensor.device}")
        whole = [tensor.detach().contiguous() for tensor in tensors]
        parts = [memory_of(tensor) for tensor in whole]
        self._wait(self._submit(name, self._copy(parts, source, name)))
        for tensor, sent in zip(tensors, whole, strict=True):
            if sent.data_ptr() != tensor.data_ptr():
                tensor.detach().copy_(sent)

    def carry_out(self, name: str, work: Callable[[RingLink, passes.Moved], object], ring: str = FLAT) -> None:
        """Has work done on the connections of the ring, in its turn among the exchanges, and waits for it.

        Args:
            name: of the work, alike on all ranks.
            work: called with the connections, and what it is to call when something has come; the same on all ranks.
            ring: whose connections; by default of the one through all ranks.

        Raises:
            ExchangeError: a rank is lost.
        """
        engine = self._engine
        if engine is None:
            return
        link, moved = engine.links[ring], engine.watch.moved

        def agreed(number: int) -> None:
            link.agree(PassOpening(number, "work", name, "", 0, 0))
            work(link, moved)
            link.drain()

        self._wait(self._submit(name, agreed))

    def ask(self) -> RankFault | None:
        """The rank that explains the failure of another collective of the same ranks; None if nobody knows of one."""
        return None if self._engine is None else self._engine.ask()

    def close(self) -> None:
        """Ends the threads and closes the sockets; the other ranks do the same when they are done."""
        self._close()

    @property
    def _rings(self) -> dict[str, Sequence[int]]:
        rings: dict[str, Sequence[int]] = {FLAT: self.order, WATCH: self.order}
        return rings | self._further | (island_rings(self.islands, self.rank) if self.islands else {})

    @property
    def place(self) -> int:
        """This rank's in the ring."""
        return self.order.index(self.rank)

    @property
    def is_closed(self) -> bool:
        """Whether :meth:`close` has been called."""
        return self._engine is not None and self._engine.is_closed

    def _sum(self, flat: FlatBuffer, name: str) -> Callable[[int], object]:
        size = flat.num_elements * flat.element_bytes
        most = block_elements(sum_block_bytes(size, self.size, self.block_bytes), flat.element_bytes)
        engine = self._engine
        if engine is None:
            return lambda _: None
        if len(self._scratch) < most * flat.element_bytes:
            self._scratch = bytearray(most * flat.element_bytes)
        link, moved, scratch = engine.links[FLAT], engine.watch.moved, self._scratch
        dtype = str(flat.tensor.dtype).removeprefix("torch.")

        def work(number: int) -> None:
            opening = PassOpening(number, "sum", name, dtype, flat.num_elements, most)
            link.announce(opening)
            passes.begin(link, flat, most)  # nobody waits for the way of an opening, and a late rank finds bytes there
            link.compare(opening)
            passes.all_reduce(link, flat, most, scratch, moved, has_begun=True)
            link.drain()

        return work

    def _sum_by_islands(self, flat: FlatBuffer, name: str) -> Callable[[int], object]:
        engine = self._engine
        assert engine is not None  # islands have ranks enough
        links = {ring: engine.links[ring] for ring in (WITHIN, ACROSS, BACK)}
        size = flat.num_elements * flat.element_bytes
        block = island_block_bytes(size, len(self.islands), len(self.islands[0]), self.block_bytes)
        most = block_elements(self.block_bytes, flat.element_bytes)
        done = IslandSum(
            links, flat, block_elements(block, flat.element_bytes), most, engine.watch.moved, engine.fail
        )  # fmt: skip
        dtype = str(flat.tensor.dtype).removeprefix("torch.")
        return lambda number: done.run(
            PassOpening(number, "sum by islands", name, dtype, flat.num_elements, done.block)
        )

    def _copy(self, parts: list[memoryview], source: int, name: str) -> Callable[[int], object]:
        engine = self._engine
        if engine is None:
            return lambda _: None
        link, moved, place = engine.links[FLAT], engine.watch.moved, self.order.index(source)
        size = sum(map(len, parts))
        most = chain_block_bytes(size, self.size, self.block_bytes)

        def work(number: int) -> None:
            link.agree(PassOpening(number, f"copy from {source}", name, "", size, most))
            passes.chain(link, parts, most, place, moved)
            link.drain()

        return work

    def _submit(
        self, name: str, work: Callable[[int], object], finish: Callable[[ExchangeError | None], object] | None = None
    ) -> ExchangeJob:
        job = ExchangeJob(name, self.step, work, finish or (lambda _: None))
        if self._engine is None:
            job.finish(None)
            job.over.set()
        else:
            self._engine.submit(job)
        return job

    def _wait(self, job: ExchangeJob) -> None:
        job.over.wait()
        if job.error is not None:
            raise job.error


class GroupAssembly:
    """The ranks of a process group; what they gather goes through its own collectives.

    Args:
        group: with a backend for tensors on the CPU.
    """

    def __init__(self, group: distributed.ProcessGroup) -> None:
        self._group = group
        self.rank = group.rank()
        self.ranks = distributed.get_process_group_ranks(group)

    def gather(self, data: bytes) -> list[bytes]:
        """Bytes of each rank, by a gathering of tensors: nothing is pickled."""
        sent = torch.zeros(GATHERED_BYTES + 2, dtype=torch.uint8)
        framed = len(data).to_bytes(2, "little") + data
        sent[: len(framed)] = torch.frombuffer(bytearray(framed), dtype=torch.uint8)
        received = [torch.empty_like(sent) for _ in self.ranks]
        distributed.all_gather(received, sent, group=self._group)  # pyright: ignore[reportUnknownMemberType]
        rows = [bytes(each.numpy()) for each in received]
        return [row[2 : 2 + int.from_bytes(row[:2], "little")] for row in rows]

"""The candidates: hardware x number of GPUs x strategy x micro-batch, one after another."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from stoker.perf.planning.offers import Offer
from stoker.perf.strategy import DataParallel, Machines, Strategy

FAMILIES = (
    "1 GPU",
    "DDP in a server",
    "DDP over servers",
    "ZeRO-1",
    "ZeRO-2",
    "FSDP",
    "PS/Worker",
    "PEARL",
    "tensor parallel",
    "pipeline",
    "tensor + pipeline",
)
"""Kinds of strategies, as people call them, in the order in which they are shown."""
LATE = "DDP, late-multiply"
"""Replicas that exchange factors and rows where these are quicker: only on request, since stoker does not do it yet."""
_SHARDED: dict[DataParallel, str] = {
    "zero1": "ZeRO-1",
    "zero2": "ZeRO-2",
    "fsdp": "FSDP",
    "ps": "PS/Worker",
    "pearl": "PEARL",
    "late": LATE,
}
_STAGES = (1, 2, 4, 8, 16)
_TENSOR = (1, 2, 4, 8)
_MICRO_BATCHES = 6
"""Most sizes of a micro-batch to try, the largest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to run the job.

    Attributes:
        gpus: all of them; their servers are paid for whole.
        micro_batch: samples that a replica computes at once.
    """

    offer: Offer
    gpus: int
    strategy: Strategy
    micro_batch: int

    @property
    def machines(self) -> Machines:
        """The hardware that it runs on."""
        offer = self.offer
        return Machines(gpu=offer.gpu, gpus=self.gpus, gpus_per_node=offer.gpus, network=offer.network)

    @property
    def servers(self) -> int:
        """Servers that are paid for."""
        return self.offer.servers(self.gpus)

    @property
    def replicas(self) -> int:
        """Copies of the model."""
        return self.strategy.replicas(self.gpus)

    @property
    def global_batch(self) -> int:
        """Samples of one optimizer step."""
        return self.micro_batch * self.strategy.accumulation * self.replicas

    @property
    def per_hour(self) -> float:
        """Price of all that is paid for."""
        return (self.gpus if self.offer.by_gpu else self.servers) * self.offer.per_hour

    @property
    def family(self) -> str:
        """One of :data:`FAMILIES`."""
        strategy = self.strategy
        if strategy.tensor > 1:
            return "tensor + pipeline" if strategy.pipeline > 1 else "tensor parallel"
        if strategy.pipeline > 1:
            return "pipeline"
        if self.gpus == 1:
            return "1 GPU"
        if strategy.data == "ddp":
            return "DDP in a server" if self.gpus <= self.offer.gpus else "DDP over servers"
        return _SHARDED[strategy.data]


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """What may be tried: the space of a search.

    Attributes:
        offers: servers to choose from.
        batch: samples of an optimizer step, or of one GPU if ``grows``.
        grows: whether the batch grows with the GPUs: each replica then computes ``batch`` samples a step.
        max_gpus: most that a job may take.
        beyond: number of GPUs above which candidates begin.
        embeddings: whether the program has tables that can be partitioned.
        late: whether replicas may exchange factors and rows.
    """

    offers: tuple[Offer, ...]
    batch: int
    grows: bool = False
    max_gpus: int = 64
    beyond: int = 0
    embeddings: bool = False
    late: bool = False

    @property
    def families(self) -> tuple[str, ...]:
        """Kinds of strategies that are considered, in the order in which they are shown."""
        at = FAMILIES.index("ZeRO-1")
        return (*FAMILIES[:at], LATE, *FAMILIES[at:]) if self.late else FAMILIES

    def __post_init__(self) -> None:
        for name in ("batch", "max_gpus"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1, got {getattr(self, name)}")


def candidates(space: Space) -> Iterator[Candidate]:
    """All candidates of a space, each once."""
    for group in groups(space):
        yield from group


def groups(space: Space) -> Iterator[list[Candidate]]:
    """Groups that differ only in micro-batch, the largest first.

    Per-GPU batch x accumulation x replicas is the global batch: counts of replicas that do not divide it are no
    candidates.
    """
    for offer in space.offers:
        for gpus in (count for count in offer.counts(space.max_gpus) if count > space.beyond):
            for data, tensor, pipeline in _spreads(space, offer, gpus):
                own = _own_batch(space, gpus // (tensor * pipeline))
                sizes = micro_batches(own)
                group = [
                    Candidate(offer=offer, gpus=gpus, micro_batch=size, strategy=Strategy(
                        data=data, tensor=tensor, pipeline=pipeline, accumulation=own // size,
                    ))
                    for size in sizes
                ]  # fmt: skip
                if group:
                    yield group


def _own_batch(space: Space, replicas: int) -> int:
    """Samples that a replica computes for a step; 0 if the batch cannot be divided evenly."""
    if space.grows:
        return space.batch
    return 0 if space.batch % replicas else space.batch // replicas


def _spreads(space: Space, offer: Offer, gpus: int) -> Iterator[tuple[DataParallel, int, int]]:
    if gpus == 1:
        yield "ddp", 1, 1
        return
    for data in _data_parallel(space):
        yield data, 1, 1
    for tensor in _TENSOR:
        for pipeline in _STAGES:
            # Products are only shared within a server: between servers the exchange would take longer than it saves.
            inside = tensor <= min(gpus, offer.gpus)
            if tensor * pipeline == 1 or not inside or gpus % (tensor * pipeline):
                continue
            yield "ddp", tensor, pipeline
            if gpus > tensor * pipeline:
                yield "zero1", tensor, pipeline


def _data_parallel(space: Space) -> Iterator[DataParallel]:
    yield from ("ddp", "zero1", "zero2", "fsdp", "ps")
    if space.embeddings:
        yield "pearl"
    if space.late:
        yield "late"


def micro_batches(own: int) -> list[int]:
    """Sizes that divide a replica's share of the batch, the largest first, each about half of the one before."""
    divisors = sorted({d for n in range(1, math.isqrt(own) + 1) if own % n == 0 for d in (n, own // n)}, reverse=True)
    kept: list[int] = []
    for size in divisors:
        if not kept or size <= 0.6 * kept[-1]:
            kept.append(size)
    return kept[:_MICRO_BATCHES] if len(kept) <= _MICRO_BATCHES else [*kept[: _MICRO_BATCHES - 1], kept[-1]]

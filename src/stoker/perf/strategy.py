"""What a step runs on and how it is spread: the input of a prediction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stoker.perf.catalogue import Gpu

DataParallel = Literal["ddp", "fsdp", "zero1", "zero2", "ps", "pearl", "late"]
"""How replicas keep their weights alike: all-reduce; all of ZeRO-3; optimizer states sharded; gradients as well;
parameter servers; embeddings partitioned over the GPUs, the dense part all-reduced; for each layer the quickest of
all-reduce, factors and rows."""
UPDATE_S = 3e-5
"""Time of the host for an update of one parameter by itself, besides its operations (assumed)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """GPUs of one kind, in equal servers.

    Attributes:
        gpus: all of them.
        gpus_per_node: of a full server; a job takes whole servers, and part of one only if it fits into it.
        network: bytes/s of a server's links to the others, one direction.
    """

    gpu: Gpu
    gpus: int = 1
    gpus_per_node: int = 8
    network: float = 12.5e9

    def __post_init__(self) -> None:
        for name in ("gpus", "gpus_per_node"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1, got {getattr(self, name)}")
        if not self.network > 0:
            raise ValueError(f"`network` must be positive, got {self.network}")

    @property
    def nodes(self) -> int:
        """Servers that the job takes."""
        return -(-self.gpus // self.gpus_per_node)


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """How one optimizer step is spread over the GPUs and over time.

    Attributes:
        data: how replicas are kept alike; ignored for one replica.
        tensor: GPUs that share each product.
        pipeline: stages.
        accumulation: micro-batches of a step, on each replica.
        recomputed: modules whose forward pass is repeated in the backward pass, where nothing of it is kept.
        products_kept: modules whose forward pass is repeated but for its matrix products and convolutions.
        updates: parameters whose gradients are used up inside the backward pass, each by a separate update; 0 where the
            optimizer steps behind it.
        away: modules whose saved activations lie in host memory until their backward pass.
        states_away: whether states of the optimizer lie in host memory between updates.
        copies_s: seconds that host memory adds to the step.
    """

    data: DataParallel = "ddp"
    tensor: int = 1
    pipeline: int = 1
    accumulation: int = 1
    recomputed: tuple[str, ...] = ()
    products_kept: tuple[str, ...] = ()
    updates: int = 0
    away: tuple[str, ...] = ()
    states_away: bool = False
    copies_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("tensor", "pipeline", "accumulation"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1, got {getattr(self, name)}")

    @property
    def is_leaner(self) -> bool:
        """Whether anything is done to a step so that it takes less memory."""
        return bool(self.recomputed or self.products_kept or self.updates or self.uses_host)

    @property
    def uses_host(self) -> bool:
        """Whether anything lies in host memory."""
        return bool(self.away or self.states_away)

    def repeats(self, module: str) -> bool:
        """Whether the forward pass of a module is repeated as a whole, by itself or as a part of another."""
        return _is_inside(module, self.recomputed)

    def keeps_products(self, module: str) -> bool:
        """Whether it is repeated but for its products, likewise."""
        return _is_inside(module, self.products_kept)

    def replicas(self, gpus: int) -> int:
        """Copies of the model that ``gpus`` GPUs hold.

        Raises:
            ValueError: the GPUs cannot be divided this way.
        """
        if gpus % (self.tensor * self.pipeline):
            raise ValueError(f"`gpus` must be a multiple of {self.tensor} x {self.pipeline}, got {gpus}")
        return gpus // (self.tensor * self.pipeline)


def _is_inside(module: str, paths: tuple[str, ...]) -> bool:
    return any(module == path or module.startswith(f"{path}.") for path in paths)

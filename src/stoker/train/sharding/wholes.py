# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The weights that a rank holds rows of: served to others, and joined with theirs to whole ones by one rank alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.optim import Optimizer

from stoker.train.ring.tensors import memory_of
from stoker.train.state.service import PartService


@dataclass(frozen=True, slots=True)
class ShardedWeight:
    """A weight of which each rank holds some rows.

    Attributes:
        name: in the module; the first one of a tied weight.
        parameter: holds them.
        shape: of the whole.
        places: modules that use it, with its name in each.
    """

    name: str
    parameter: nn.Parameter
    shape: tuple[int, ...]
    places: tuple[tuple[nn.Module, str], ...]

    def rows(self, ranks: int) -> list[int]:
        """Rows of each rank, as FSDP2 deals them."""
        width = -(-self.shape[0] // ranks)
        return [max(0, min(width, self.shape[0] - rank * width)) for rank in range(ranks)]

    def of_rank(self, whole: Tensor, ranks: int, rank: int) -> Tensor:
        """A rank's rows of a whole tensor, as a copy."""
        return whole.detach().split(self.rows(ranks))[rank].clone(memory_format=torch.contiguous_format)


class ShardedWeights:
    """The weights of one module, and the states of the optimizers that train them, on one rank.

    Args:
        mesh: of the ranks.
        weights: by name, alike on all ranks.
    """

    def __init__(self, mesh: DeviceMesh, weights: dict[str, ShardedWeight]) -> None:
        self.mesh, self.weights = mesh, weights
        self.rank, self.ranks = mesh.get_local_rank(), mesh.size()
        self.by_parameter = {each.parameter: each for each in weights.values()}
        self.optimizers: list[Optimizer] = []
        """Those that train them, as far as they have been seen: other ranks may ask for their states."""
        self.buffers: dict[str, Tensor] = {}
        """Buffers of the module, by name: whole on each rank."""
        self.service: PartService | None = None
        self.kept: object = None
        """The group of DDP, kept until the program ends. DDP's reducer must not hold it last: it would wait, with the
        GIL, for threads that want the GIL, and this rank could serve nothing."""
        self._seen: dict[str, tuple[int, nn.Parameter]] = {}

    def part(self, name: str) -> memoryview:
        """The bytes of this rank's rows of a weight, of its state (``name:state``), or of a buffer (``:name``)."""
        path, _, state = name.partition(":")
        if not path:
            return _bytes_of(self.buffers[state])
        parameter = self.weights[path].parameter
        if not state:
            return _bytes_of(local_of(parameter))
        for optimizer in self.optimizers:
            value = optimizer.state.get(parameter, {}).get(state)
            if isinstance(value, Tensor):
                return _bytes_of(local_of(value))
        raise KeyError(name)

    def whole(self, weight: ShardedWeight, state: str = "", own: Tensor | None = None) -> Tensor:
        """A whole tensor, whose other rows come from the ranks that hold them. Not collective.

        Args:
            weight: of which it is.
            state: of the optimizer, such as ``exp_avg``; empty for the weight itself.
            own: this rank's rows of it.

        Raises:
            ExchangeError: a rank is gone, or at another version.
        """
        assert self.service is not None
        local = local_of(weight.parameter if own is None else own).detach()
        whole = local.new_empty(weight.shape)
        name = f"{weight.name}:{state}" if state else weight.name
        for rank, place in enumerate(whole.split(weight.rows(self.ranks))):
            if rank == self.rank:
                place.copy_(local)
            elif place.numel():
                data = self.service.fetch(rank, name)
                place.copy_(torch.frombuffer(data, dtype=local.dtype).view(place.shape))
        return whole

    def seen_whole(self, weight: ShardedWeight, *, keeps: bool) -> nn.Parameter:
        """A whole weight for a pass without gradients; kept until weights change or training goes on, if asked to."""
        version = self.version
        kept = self._seen.get(weight.name)
        if kept is not None and kept[0] == version:
            return kept[1]
        found = nn.Parameter(self.whole(weight), requires_grad=weight.parameter.requires_grad)
        if keeps:
            self._seen[weight.name] = version, found
        return found

    def take_buffers(self) -> None:
        """This rank's buffers become the first rank's at the same version. Not collective."""
        assert self.service is not None
        for name, buffer in self.buffers.items():
            if self.rank and buffer.numel():
                data = self.service.fetch(0, f":{name}")
                buffer.copy_(torch.frombuffer(data, dtype=buffer.dtype).view(buffer.shape))

    def sharded(self, weight: ShardedWeight, whole: Tensor) -> DTensor:
        """A tensor in rows, of which this rank takes its own from a whole one. Not collective."""
        rows = weight.of_rank(whole.to(local_of(weight.parameter).device), self.ranks, self.rank)
        stride = torch.empty(weight.shape, device="meta").stride()
        return DTensor.from_local(
            rows, self.mesh, [Shard(0)], run_check=False, shape=torch.Size(weight.shape), stride=stride
        )

    def held_by(self, optimizer: Optimizer) -> Iterator[tuple[int, ShardedWeight]]:
        """Weights that an optimizer trains, with their numbers among its parameters."""
        number = 0
        for group in optimizer.param_groups:
            for each in group["params"]:
                if each in self.by_parameter:
                    yield number, self.by_parameter[each]
                number += 1

    @property
    def version(self) -> int:
        """How often weights or states have changed."""
        return 0 if self.service is None else self.service.standing.version

    @property
    def num_forwards(self) -> int:
        """Passes for training so far."""
        return 0 if self.service is None else self.service.standing.forwards

    def begin_forward(self) -> None:
        """A pass for training begins."""
        self._seen.clear()
        if self.service is not None:
            self.service.begin_forward()

    def change_weights(self) -> None:
        """Weights or the state of an optimizer have changed, on all ranks."""
        self._seen.clear()
        if self.service is not None:
            self.service.change_weights()


def local_of(tensor: Tensor) -> Tensor:
    """This rank's rows; a tensor that is whole on each rank as it is."""
    return cast("Any", tensor).to_local() if isinstance(tensor, DTensor) else tensor


def _bytes_of(tensor: Tensor) -> memoryview:
    return memory_of(tensor.detach().cpu().contiguous())

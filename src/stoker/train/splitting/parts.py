# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""The parts of a split model that a rank holds: served to others, and joined with theirs to whole tensors."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stoker.train.ring.tensors import memory_of
from stoker.train.splitting.samples import SampleExchange
from stoker.train.state.optimizers import StatesOwner
from stoker.train.state.service import PartService


@dataclass(frozen=True, slots=True)
class SplitPart:
    """A part of a parameter.

    Attributes:
        name: of the parameter in the model.
        parameter: holds the part.
        dim: along which it is split.
        widths: of all ranks' parts there.
    """

    name: str
    parameter: nn.Parameter
    dim: int
    widths: tuple[int, ...]

    def cut(self, whole: Tensor, rank: int) -> Tensor:
        """A rank's part of a whole tensor."""
        return whole.split(list(self.widths), dim=self.dim)[rank].clone(memory_format=torch.contiguous_format)

    @property
    def whole_shape(self) -> tuple[int, ...]:
        """Sizes of the whole."""
        return tuple(self._shape(sum(self.widths)))

    def shape_on(self, rank: int) -> tuple[int, ...]:
        """Sizes of a rank's part."""
        return tuple(self._shape(self.widths[rank]))

    def _shape(self, width: int) -> list[int]:
        shape = list(self.parameter.shape)
        shape[self.dim] = width
        return shape


class SplitParts:
    """All parts of one model on one rank.

    Args:
        exchange: with the other ranks.
        by_element: classes of optimizers that the program vouches for.

    Attributes:
        parts: by the name of the parameter.
        optimizers: that train them, as far as they have been seen. They are kept: other ranks may ask for their state.
    """

    def __init__(self, exchange: SampleExchange, by_element: Sequence[type[Optimizer]] = ()) -> None:
        self.exchange, self.by_element = exchange, tuple(by_element)
        self.parts: dict[str, SplitPart] = {}
        self.optimizers: list[Optimizer] = []
        self.service: PartService | None = None
        self.states: StatesOwner | None = None
        """What sees the optimizers that train them."""
        self.kept: object = None
        """The group of DDP, kept until the program ends. DDP's reducer must not hold the group last: it would wait,
        with the GIL, for threads that want the GIL, and this rank could serve nothing."""
        self._wholes: dict[str, tuple[int, Tensor]] = {}
        all_parts.add(self)

    def add(self, part: SplitPart) -> None:
        """Cuts a parameter, which holds the whole until now, and adds it."""
        put(part.parameter, part.cut(part.parameter.data, self.exchange.rank))
        self.parts[part.name] = part

    def held_by(self, optimizer: Optimizer) -> dict[int, SplitPart]:
        """Parts that an optimizer trains, by the number of the parameter in its state dict."""
        parts = {id(part.parameter): part for part in self.parts.values()}
        every = (parameter for group in optimizer.param_groups for parameter in group["params"])
        return {number: parts[id(each)] for number, each in enumerate(every) if id(each) in parts}

    def of_gradients(self, gradients: Iterable[Tensor]) -> dict[int, SplitPart]:
        """Parts whose gradients are among tensors, by the identity of the tensor."""
        parts = {id(part.parameter.grad): part for part in self.parts.values() if part.parameter.grad is not None}
        return {id(each): parts[id(each)] for each in gradients if id(each) in parts}

    def part(self, name: str) -> memoryview:
        """The bytes of a part, or of its state (``name:state``) in an optimizer; for other ranks."""
        path, _, state = name.partition(":")
        parameter = self.parts[path].parameter
        if not state:
            return _bytes_of(parameter.data)
        for optimizer in self.optimizers:
            value = optimizer.state.get(parameter, {}).get(state)
            if isinstance(value, Tensor):
                return _bytes_of(value)
        raise KeyError(name)

    def whole(self, part: SplitPart, state: str = "", own: Tensor | None = None) -> Tensor:
        """A whole tensor, whose other parts come from the ranks that hold them. Not collective.

        Args:
            part: of the parameter.
            state: of the optimizer, such as ``exp_avg``; empty for the weights.
            own: this rank's part of it.

        Raises:
            ExchangeError: a rank is gone, or at another version.
        """
        own = part.parameter.data if own is None else own
        whole = own.new_empty(part.whole_shape)
        name = f"{part.name}:{state}" if state else part.name
        for rank, place in enumerate(whole.split(list(part.widths), dim=part.dim)):
            place.copy_(own if rank == self.exchange.rank else self._fetched(rank, name, part, own.dtype))
        return whole

    def gathered(self, part: SplitPart, own: Tensor) -> Tensor:
        """A whole tensor from the parts that all ranks have of it. Collective."""
        pieces = self.exchange.gather_pieces(own, [part.shape_on(rank) for rank in range(self.exchange.ranks)])
        return torch.cat(pieces, dim=part.dim)

    def seen_whole(self, part: SplitPart) -> Tensor:
        """Whole weights for an evaluation, kept until weights change or training goes on."""
        assert self.service is not None
        version = self.service.standing.version
        kept = self._wholes.get(part.name)
        if kept is None or kept[0] != version:
            kept = self._wholes[part.name] = version, self.whole(part)
        return kept[1]

    def begin_forward(self) -> None:
        """A forward pass of a layer begins, for training."""
        self._wholes.clear()
        if self.service is not None:
            self.service.begin_forward()

    def change_weights(self) -> None:
        """Weights or an optimizer's state change, on all ranks."""
        self._wholes.clear()
        if self.service is not None:
            self.service.change_weights()

    def version(self) -> int:
        """How often that was."""
        return 0 if self.service is None else self.service.standing.version

    def _fetched(self, rank: int, name: str, part: SplitPart, dtype: torch.dtype) -> Tensor:
        assert self.service is not None
        data = self.service.fetch(rank, name)
        return torch.frombuffer(data, dtype=dtype).view(part.shape_on(rank))


all_parts: weakref.WeakSet[SplitParts] = weakref.WeakSet()
"""The parts of this process's models."""
split_models: weakref.WeakSet[nn.Module] = weakref.WeakSet()
"""Models of which layers are split, or are about to be."""


def put(parameter: nn.Parameter, data: Tensor) -> None:
    """Gives a parameter other data, which may be of another size; its gradient is gone then.

    As long as a graph lives in which the parameter was used, such as that of the program's last loss, torch remembers
    the size of its gradient. It forgets that where the type changes.
    """
    parameter.grad = None
    other = torch.float64 if data.dtype != torch.float64 else torch.float32
    parameter.data = data.new_empty(0, dtype=other)
    parameter.data = data


def _bytes_of(tensor: Any) -> memoryview:
    return memory_of(tensor.detach().cpu().contiguous())

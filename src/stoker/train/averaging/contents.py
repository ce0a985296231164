# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""What is averaged on one rank: parameters, buffers and optimizer state, with the last means of them.

The means lie in a few flat tensors, which are also what is sent: a mean is taken in place, and holds until the next.
They are what an evaluation and a checkpoint see, so that neither needs the other ranks.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


def parameters_of(module: nn.Module) -> list[nn.Parameter]:
    """Parameters that are trained, each once."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def buffers_of(module: nn.Module) -> list[Tensor]:
    """Buffers of floating point, running statistics above all; counters are equal on all ranks anyway."""
    return [buffer for buffer in module.buffers() if buffer.is_floating_point()]


def states_of(parameters: Iterable[nn.Parameter], optimizers: Sequence[Optimizer]) -> list[Tensor]:
    """Tensors of the optimizers that have the shape of their parameter, as momenta have, in a fixed order."""
    found: list[Tensor] = []
    for parameter in parameters:
        for optimizer in optimizers:
            state = optimizer.state.get(parameter, {})
            for name in sorted(map(str, state)):
                value = state.get(name)
                if isinstance(value, Tensor) and value.shape == parameter.shape and value.is_floating_point():
                    found.append(value)
    return found


class FlatCopy:
    """A copy of tensors in one flat tensor for each dtype and device.

    Args:
        tensors: those that are copied, by reference: they may change their values, not their shapes.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = list(tensors)
        self.flat: list[Tensor] = []
        self.views: list[Tensor] = [torch.empty(0)] * len(self.tensors)
        """The copies, in the shapes of the tensors."""
        kinds: dict[tuple[torch.dtype, torch.device], list[int]] = {}
        for place, tensor in enumerate(self.tensors):
            kinds.setdefault((tensor.dtype, tensor.device), []).append(place)
        for (dtype, device), places in kinds.items():
            sizes = [self.tensors[place].numel() for place in places]
            flat = torch.empty(sum(sizes), dtype=dtype, device=device)
            self.flat.append(flat)
            for place, part in zip(places, flat.split(sizes), strict=True):
                self.views[place] = part.view(self.tensors[place].shape)
        self.take()

    @property
    def bytes(self) -> int:
        """Bytes of the copies."""
        return sum(flat.numel() * flat.element_size() for flat in self.flat)

    def holds(self, tensors: Sequence[Tensor]) -> bool:
        """Whether these are the tensors that are copied."""
        return len(tensors) == len(self.tensors) and all(a is b for a, b in zip(tensors, self.tensors, strict=True))

    @torch.no_grad()
    def take(self) -> None:
        """Copies the tensors."""
        for view, tensor in zip(self.views, self.tensors, strict=True):
            view.copy_(tensor)

    @torch.no_grad()
    def give(self) -> None:
        """Copies back into the tensors."""
        for view, tensor in zip(self.views, self.tensors, strict=True):
            tensor.copy_(view)

    @torch.no_grad()
    def squared_distance(self) -> float:
        """The sum over all elements of the squared difference between tensor and copy."""
        sums = [(tensor - view).float().square().sum() for view, tensor in self._pairs()]
        return float(torch.stack([each.double().cpu() for each in sums]).sum()) if sums else 0.0

    def _pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(self.views, self.tensors, strict=True)


class AveragedContents:
    """The three copies of a model and its optimizers.

    Args:
        module: the model.
        optimizers: that train it.
    """

    def __init__(self, module: nn.Module, optimizers: Sequence[Optimizer]) -> None:
        self.module = module
        self.optimizers = list(optimizers)
        self.weights = FlatCopy([])
        self.buffers = FlatCopy([])
        self.states = FlatCopy([])
        self.find()

    def find(self) -> None:
        """Looks for tensors that came or went: frozen weights, state that an optimizer makes at its first step."""
        parameters = parameters_of(self.module)
        for name, tensors in (
            ("weights", parameters),
            ("buffers", buffers_of(self.module)),
            ("states", states_of(parameters, self.optimizers)),
        ):
            held: FlatCopy = getattr(self, name)
            if not held.holds(tensors):
                setattr(self, name, _moved(held, tensors))

    @property
    def layout(self) -> int:
        """A checksum of all shapes and dtypes: the same on ranks whose copies can be averaged."""
        copies = (self.weights, self.buffers, self.states)
        shapes = [[(tuple(each.shape), str(each.dtype)) for each in copy.tensors] for copy in copies]
        return zlib.crc32(repr(shapes).encode())

    @property
    def weights_layout(self) -> int:
        """Likewise, without the optimizers' state."""
        return zlib.crc32(repr([(tuple(each.shape), str(each.dtype)) for each in self.weights.tensors]).encode())

    @property
    def bytes(self) -> int:
        """Bytes of all three."""
        return self.weights.bytes + self.buffers.bytes + self.states.bytes


def _moved(held: FlatCopy, tensors: Sequence[Tensor]) -> FlatCopy:
    """A copy of the tensors that keeps the values of those which were copied before."""
    known = {id(tensor): view for view, tensor in zip(held.views, held.tensors, strict=True)}
    made = FlatCopy(tensors)
    for view, tensor in zip(made.views, made.tensors, strict=True):
        if id(tensor) in known:
            view.copy_(known[id(tensor)])
    return made

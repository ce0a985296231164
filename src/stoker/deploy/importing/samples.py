# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""A user's samples as arrays, split in three: what ranges come from, what chooses, and what only judges."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stoker.core.errors import CalibrationError
from stoker.deploy.batches import parts_of

BATCH = 64
"""Samples that run at once."""
_TURNS = ("calibrate", "search", "calibrate", "accept")
"""What each sample is for, by turns."""
_LEAST = 8


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples of a model.

    Attributes:
        inputs: one tensor an argument of the model, samples first.
        labels: the right class of each; None if the loader has none.
    """

    inputs: tuple[torch.Tensor, ...]
    labels: NDArray[np.int64] | None

    def __len__(self) -> int:
        return len(self.inputs[0])

    def batches(self) -> list[tuple[torch.Tensor, ...]]:
        """All inputs, some samples at a time."""
        return [tuple(each[at : at + BATCH] for each in self.inputs) for at in range(0, len(self), BATCH)]

    def arrays(self, names: Sequence[str]) -> dict[str, NDArray[Any]]:
        """All inputs by name."""
        return {name: np.asarray(each.numpy()) for name, each in zip(names, self.inputs, strict=True)}

    def part(self, role: str) -> Samples:
        """Those of one role: ``calibrate`` (half), ``search`` or ``accept`` (a quarter each)."""
        own = [at for at in range(len(self)) if _TURNS[at % len(_TURNS)] == role]
        labels = None if self.labels is None else self.labels[own]
        return Samples(tuple(each[own] for each in self.inputs), labels)


def gather(batches: Iterable[Any], most: int, module: torch.nn.Module | None = None) -> Samples:
    """The samples of a loader.

    A batch is a tensor, a dict of the model's arguments, or a tuple: a tensor for each argument, and labels after them
    if there are any. Whole numbers that come last of several, one a sample, are labels, unless the model needs them.

    Args:
        batches: of a ``DataLoader`` or any other iterable.
        most: samples to take.
        module: the model; without it the first of several is what it needs.

    Raises:
        CalibrationError: there are fewer than eight samples, or a batch has another form; fields: value.
    """
    parameters = () if module is None else inspect.signature(module.forward).parameters.values()
    names = [each.name for each in parameters]
    needed = sum(each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD for each in parameters)
    parts: list[tuple[tuple[torch.Tensor, ...], torch.Tensor | None]] = []
    count = 0
    for batch in batches:
        inputs, labels = _batch(parts_of(batch, names), max(needed, 1))
        parts.append((inputs, labels))
        count += len(inputs[0])
        if count >= most:
            break
    if count < _LEAST:
        raise CalibrationError(f"calibration needs at least {_LEAST} samples, got {count}", value="")
    arguments = zip(*(inputs for inputs, _ in parts), strict=True)
    inputs = tuple(torch.cat(list(each))[:most].detach().cpu() for each in arguments)
    labelled = [each for _, each in parts if each is not None]
    labels = torch.cat(labelled)[:most].numpy().astype(np.int64) if len(labelled) == len(parts) else None
    return Samples(inputs, labels)


def _batch(parts: Sequence[Any], needed: int) -> tuple[tuple[torch.Tensor, ...], torch.Tensor | None]:
    tensors = [_tensor(each) for each in parts]
    if not tensors or any(not each.ndim or len(each) != len(tensors[0]) for each in tensors):
        raise CalibrationError("a batch must hold tensors with one number of samples as first axis", value="")
    last = tensors[-1]
    if len(tensors) > needed and last.ndim == 1 and not last.dtype.is_floating_point:
        return tuple(tensors[:-1]), last
    return tuple(tensors), None


def _tensor(part: Any) -> torch.Tensor:
    try:
        return torch.as_tensor(part)
    except (TypeError, ValueError, RuntimeError) as error:
        raise CalibrationError(
            f"a batch must hold tensors, got {type(part).__name__} ({error}); return one for each argument of the "
            "model, and labels after them if there are any",
            value=type(part).__name__,
        ) from error

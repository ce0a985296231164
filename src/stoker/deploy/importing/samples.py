# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""A user's samples as arrays, split in three: what ranges come from, what chooses, and what only judges."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
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
        notes: lines for a person on what was left out or converted.
        names: of the arguments that the inputs are, where they are not the model's first; empty where they are.
    """

    inputs: tuple[torch.Tensor, ...]
    labels: NDArray[np.int64] | None
    notes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

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
        return Samples(tuple(each[own] for each in self.inputs), labels, names=self.names)


def gather(batches: Iterable[Any], most: int, module: torch.nn.Module | None = None) -> Samples:
    """The samples of a loader.

    A batch is a tensor, a dict of the model's arguments, or a tuple: a tensor for each argument, and targets after them
    if there are any. A dict gives arguments by name, or by place if no key is the name of one. What ``forward`` can't
    take is a target, and so are whole numbers that come last of several, one a sample, unless the model needs them.
    Targets that are whole numbers, one a sample, are labels, and others are left out, with a note. Other floats than
    float32 become it, with a note.

    Args:
        batches: of a ``DataLoader`` or any other iterable.
        most: samples to take.
        module: the model; without it the first of several is what it needs.

    Raises:
        CalibrationError: there are fewer than eight samples, or a batch has another form, or another than those before,
            or a dict names arguments, and not all that the model needs; fields: value.
    """
    call = _Call.of(module)
    notes: dict[str, None] = {}
    parts: list[tuple[tuple[torch.Tensor, ...], torch.Tensor | None]] = []
    names: dict[tuple[str, ...], None] = {}
    count = 0
    for batch in batches:
        named = call.named(batch)
        inputs, labels = _batch(parts_of(batch, named or call.names), call, notes, len(named))
        parts.append((inputs, labels))
        names[named[: len(inputs)]] = None
        count += len(inputs[0])
        if count >= most:
            break
    if count < _LEAST:
        raise CalibrationError(f"calibration needs at least {_LEAST} samples, got {count}", value="")
    _check_forms([inputs for inputs, _ in parts])
    if len(names) > 1:
        told = " and ".join(f"({', '.join(each)})" for each in names)
        raise CalibrationError(f"all batches must hold the same arguments, and they hold {told}", value=told)
    (taken,) = names
    arguments = zip(*(inputs for inputs, _ in parts), strict=True)
    inputs = tuple(torch.cat(list(each))[:most].detach().cpu() for each in arguments)
    labelled = [each for _, each in parts if each is not None]
    labels = torch.cat(labelled)[:most].cpu().numpy().astype(np.int64) if len(labelled) == len(parts) else None
    return Samples(inputs, labels, tuple(notes), () if taken == call.placed[: len(taken)] else taken)


@dataclass(frozen=True, slots=True)
class _Call:
    """How a model is called.

    Attributes:
        names: of its arguments.
        placed: of those that it takes by place.
        needed: of those without a default.
        least: tensors that it needs.
        most: tensors that it takes by place.
    """

    names: tuple[str, ...] = ()
    placed: tuple[str, ...] = ()
    needed: frozenset[str] = frozenset()
    least: int = 1
    most: float = math.inf

    @classmethod
    def of(cls, module: torch.nn.Module | None) -> _Call:
        try:
            found = () if module is None else tuple(inspect.signature(module.forward).parameters.values())
        except (TypeError, ValueError):  # of TorchScript, which capturing refuses in words
            found = ()
        within = [] if module is None else list(module.children())
        if len(within) == 1 and type(module).__module__.startswith("torch.") and _takes_any(found):
            return cls.of(within[0])  # compiled, or spread over devices
        placed = [each for each in found if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
        named = [*placed, *(each for each in found if each.kind is each.KEYWORD_ONLY)]
        least = sum(each.default is each.empty for each in placed)
        return cls(
            names=tuple(each.name for each in named),
            placed=tuple(each.name for each in placed),
            needed=frozenset(each.name for each in named if each.default is each.empty),
            least=max(least, 1),
            most=math.inf if not placed or _takes_any(found) else len(placed),
        )

    def named(self, batch: Any) -> tuple[str, ...]:
        """Arguments that a dict gives by name, in the model's order; none where it names none of them.

        By place they would be others wherever the dict leaves one out, or the model takes one by name alone.

        Raises:
            CalibrationError: the dict names some, and not all that the model needs; fields: value.
        """
        found = tuple(name for name in self.names if isinstance(batch, Mapping) and name in batch)
        lacking = [name for name in self.names if name in self.needed and name not in found]
        if found and lacking:
            held = ", ".join(map(str, batch))
            raise CalibrationError(
                f"a dict of the loader must hold all that the model needs, and lacks {', '.join(lacking)} among {held}"
                "; name its tensors as the arguments of `forward`, or return a tuple",
                value=held,
            )
        return found


def _takes_any(parameters: Iterable[inspect.Parameter]) -> bool:
    return any(each.kind is each.VAR_POSITIONAL for each in parameters)


def _batch(
    parts: Sequence[Any], call: _Call, notes: dict[str, None], named: int
) -> tuple[tuple[torch.Tensor, ...], torch.Tensor | None]:
    """Inputs and labels of a batch, of which so many were given by name; by place where that is none."""
    tensors = [_tensor(each) for each in parts]
    if not tensors or any(not each.ndim or len(each) != len(tensors[0]) for each in tensors):
        sizes = ", ".join(str(list(each.shape)) for each in tensors) or "none"
        raise CalibrationError(
            f"a batch must hold tensors with one number of samples as first axis, got sizes {sizes}; single samples, "
            "as a dataset has them, become batches in a `DataLoader`",
            value=sizes,
        )
    taken = named or min(len(tensors), call.most)
    if taken == len(tensors) > call.least and tensors[-1].ndim == 1 and _classes(tensors[-1]) is not None:
        taken -= 1
    inputs, targets = tensors[: int(taken)], tensors[int(taken) :]
    found = [_classes(each) for each in targets]
    for target, classes in zip(targets, found, strict=True):
        if classes is None:
            notes[
                f"targets of {_size(target)} {_type(target)} numbers a sample are left out: "
                "labels are whole numbers, one a sample"
            ] = None
    for each in inputs:
        if 0 in each.shape[1:] or each.dtype.is_complex:
            what = f"{_size(each)} {_type(each)} numbers"
            raise CalibrationError(
                f"each input must hold real or whole numbers of a sample, got {what}; leave it out of the module, or "
                "give real and imaginary parts by `torch.view_as_real`",
                value=what,
            )
    return tuple(_single(each, notes) for each in inputs), next((each for each in found if each is not None), None)


def _classes(target: torch.Tensor) -> torch.Tensor | None:
    """A class of each sample; None if these are something else."""
    whole = not (target.dtype.is_floating_point or target.dtype.is_complex)
    return target.reshape(-1) if whole and target.shape[1:] in ((), (1,)) else None


def _single(tensor: torch.Tensor, notes: dict[str, None]) -> torch.Tensor:
    if not tensor.dtype.is_floating_point or tensor.dtype == torch.float32:
        return tensor
    notes[f"the loader's {_type(tensor)} numbers are taken as float32"] = None
    return tensor.float()


def _check_forms(batches: Sequence[tuple[torch.Tensor, ...]]) -> None:
    """Refuses batches that can't be one."""
    first = batches[0]
    for each in batches:
        if len(each) != len(first):
            raise CalibrationError(
                f"all batches must hold the same arguments, and one holds {len(first)} of them, another {len(each)}",
                value=str(len(each)),
            )
        for one, other in zip(first, each, strict=True):
            if one.shape[1:] != other.shape[1:]:
                raise CalibrationError(
                    f"all samples must have one size, and one batch has {_size(one)}, another {_size(other)}; "
                    "bring them to the size that the model will get",
                    value=_size(other),
                )


def _size(tensor: torch.Tensor) -> str:
    return " x ".join(map(str, tensor.shape[1:])) or "1"


def _type(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _tensor(part: Any) -> torch.Tensor:
    try:
        return torch.as_tensor(part)
    except (TypeError, ValueError, RuntimeError) as error:
        raise CalibrationError(
            f"a batch must hold tensors, got {type(part).__name__} ({error}); return one for each argument of the "
            "model, and labels after them if there are any",
            value=type(part).__name__,
        ) from error

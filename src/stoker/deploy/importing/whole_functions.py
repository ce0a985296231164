# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Tensors that are functions of whole numbers alone, element by element: masks, from inputs to where they are used.

A function is known by its results for all numbers that its arguments can hold, computed by torch itself. So it does
not matter in which words a mask is made of an input: what comes of 0 and of 1 is all that there is. Axes are made of
atoms, as in :mod:`stoker.deploy.lowering.layout`; one that no argument has is repeated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from stoker.deploy.lowering.layout import BATCH, Atom, Group, Laid, reshaped

MOST_RESULTS = 1 << 20
"""Combinations of numbers that a function is computed for."""


@dataclass(frozen=True, slots=True)
class WholeArgument:
    """A value of whole numbers that a function reads, where its axes are in the function's result.

    Attributes:
        value: name of the value.
        axes: its own axes as atoms of the function; None for size 1.
        count: numbers that it can hold, from 0 on.
    """

    value: str
    axes: tuple[Atom | None, ...]
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class WholeFunction:
    """A tensor whose elements depend on whole numbers alone.

    Attributes:
        axes: of the tensor.
        arguments: what it reads, each once.
        results: for each combination of numbers, an axis an argument.
    """

    axes: tuple[Group, ...]
    arguments: tuple[WholeArgument, ...]
    results: torch.Tensor

    @property
    def used(self) -> frozenset[Atom]:
        """Atoms along which it differs."""
        return frozenset(atom for each in self.arguments for atom in each.axes if atom is not None)

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape, multiples of the batch negative."""
        return tuple(
            math.prod(atom.size for atom in group if atom is not BATCH) * (-1 if BATCH in group else 1)
            for group in self.axes
        )

    def ranked(self, rank: int) -> WholeFunction:
        """The same with axes of size 1 before its own."""
        return replace(self, axes=((),) * (rank - len(self.axes)) + self.axes)

    def permuted(self, order: Sequence[int]) -> WholeFunction:
        """Its axes in another order."""
        return replace(self, axes=tuple(self.axes[axis] for axis in order))

    def reshaped(self, shape: tuple[int, ...]) -> WholeFunction | None:
        """Its axes split and joined; None where that takes an atom apart."""
        found = reshaped(Laid("", self.axes, ()), shape)
        if found is None or not {atom for group in found.axes for atom in group} <= {
            atom for group in self.axes for atom in group
        }:
            return None
        return replace(self, axes=found.axes)

    def expanded(self, shape: tuple[int, ...]) -> WholeFunction | None:
        """Axes of size 1 repeated, and new ones before its own; None where others would change."""
        axes = self.ranked(len(shape)).axes
        made = tuple(
            group or _new_axis(size) for group, size in zip(axes, shape, strict=True)
        )  # fmt: skip
        found = replace(self, axes=made)
        return found if found.shape == shape else None


def of_value(value: str, shape: Sequence[int], count: int, numbers: torch.Tensor) -> WholeFunction:
    """A value of whole numbers as a function of itself.

    Args:
        value: its name.
        shape: of the value; multiples of the batch are negative.
        count: numbers that it can hold.
        numbers: what these are in torch: themselves, truth values, or the numbers of a constant that they stand for.
    """
    axes = tuple(_new_axis(size) for size in shape)
    own = tuple(group[0] if group else None for group in axes)
    return WholeFunction(axes, (WholeArgument(value, own, count),), numbers)


def of_number(shape: Sequence[int], number: torch.Tensor) -> WholeFunction:
    """A constant that is the same throughout."""
    return WholeFunction(tuple(_new_axis(size) for size in shape), (), number.reshape(()))


def computed(
    compute: Callable[[Sequence[torch.Tensor]], torch.Tensor], operands: Sequence[WholeFunction]
) -> WholeFunction | None:
    """A pointwise operation on functions, which broadcast as tensors do.

    Args:
        compute: the operation, of tensors that broadcast.
        operands: what it reads.

    Returns:
        None: axes do not fit, or there are too many combinations.
    """
    rank = max(len(each.axes) for each in operands)
    axes: tuple[Group, ...] = ((),) * rank
    moved: list[WholeFunction] = []
    for each in operands:
        found = _aligned(axes, each.ranked(rank))
        if found is None:
            return None
        axes, own = found
        moved.append(own)
    arguments = tuple(dict.fromkeys(argument for each in moved for argument in each.arguments))
    counts = [each.count for each in arguments]
    if math.prod(counts) > MOST_RESULTS:
        return None
    with torch.no_grad():
        results = compute([_over(each, arguments) for each in moved]).broadcast_to(counts)
    return without_idle(WholeFunction(axes, arguments, results))


def _new_axis(size: int) -> Group:
    if size < -1:
        return BATCH, Atom(-size)
    return (BATCH,) if size < 0 else (Atom(size),) if size > 1 else ()


def _aligned(
    axes: tuple[Group, ...], own: WholeFunction
) -> tuple[tuple[Group, ...], WholeFunction] | None:  # fmt: skip
    """Axes of a result once a function is part of it, and the function with the result's atoms."""
    taken = {atom for group in axes for atom in group}
    names: dict[Atom, Atom] = {}
    made: list[Group] = []
    for there, group in zip(axes, own.axes, strict=True):
        if there and group:
            if [atom.size for atom in there] != [atom.size for atom in group]:
                return None
            names |= dict(zip(group, there, strict=True))
            made.append(there)
            continue
        for atom in group:
            if atom is BATCH and atom in taken:
                return None
            # The same value may come twice, along different axes of the result.
            names[atom] = Atom(atom.size) if atom in taken else atom
        made.append(there or tuple(names[atom] for atom in group))
    arguments = tuple(
        replace(each, axes=tuple(None if atom is None else names[atom] for atom in each.axes)) for each in own.arguments
    )
    return tuple(made), replace(own, axes=tuple(made), arguments=arguments)


def _over(function: WholeFunction, arguments: Sequence[WholeArgument]) -> torch.Tensor:
    """A function's results with an axis for each of several arguments, of size 1 for those that it does not read."""
    places = [arguments.index(each) for each in function.arguments]
    turned = function.results.permute(sorted(range(len(places)), key=places.__getitem__))
    return turned.reshape([each.count if each in function.arguments else 1 for each in arguments])


def without_idle(function: WholeFunction) -> WholeFunction:
    """The function without arguments that its results do not depend on."""
    results, kept = function.results, list[WholeArgument]()
    for each in function.arguments:
        axis = len(kept)
        if bool((results == results.narrow(axis, 0, 1)).all()):
            results = results.select(axis, 0)
        else:
            kept.append(each)
    return WholeFunction(function.axes, tuple(kept), results)

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Functions of whole inputs as values of the graph: tables, products and moves, each put down once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx

from stoker.deploy.floating.operations import (
    FloatConcat,
    FloatConstant,
    FloatLookup,
    FloatPermute,
    FloatProduct,
    FloatReshape,
    FloatRunningSum,
    FloatSlice,
    GivenGrid,
)
from stoker.deploy.importing.matching import Matcher
from stoker.deploy.importing.whole_functions import (
    WholeArgument,
    WholeFunction,
    of_number,
    of_value,
    without_idle,
)
from stoker.deploy.lowering.layout import Atom, Group

LEAST = -1e4
"""What is added to scores and is at most this leaves an element out: -10,000, the least number and -inf are usual."""
_MOST_COMBINATIONS = 1 << 16
"""The largest table by several values: combinations of their numbers."""
_MOST_DIFFERENT = 1 << 12
"""Numbers of a constant that a mask is made of."""


class MaskValues:
    """What is put down for the masks of a graph that is being matched.

    Args:
        at: the graph.
    """

    def __init__(self, at: Matcher) -> None:
        self._at = at
        self._fixed: dict[str, torch.Tensor] = {}
        """Whole numbers of values that are constant."""
        self._made: dict[tuple[Any, ...], str] = {}
        """Values that were written already."""

    def of_constant(self, node: fx.Node, tensor: torch.Tensor) -> WholeFunction | None:
        """A constant as a function of the places of its numbers; None if too many differ."""
        numbers, where = torch.unique(tensor, return_inverse=True)
        if len(numbers) == 1:
            return of_number(tensor.shape, tensor.flatten()[0])
        if len(numbers) > _MOST_DIFFERENT:
            return None
        key = ("constant", tensor.dtype, tuple(tensor.shape), tensor.numpy().tobytes())
        if key not in self._made:
            array, count = where.numpy().astype(np.float64), len(numbers)
            self._made[key] = made = self.add(node, FloatConstant, (), tensor.shape, count, array=array)
            self._fixed[made] = where
        return of_value(self._made[key], tensor.shape, len(numbers), numbers)

    def is_fixed(self, function: WholeFunction) -> bool:
        """Whether a function reads constants alone."""
        return all(each.value in self._fixed for each in function.arguments)

    def constant(self, function: WholeFunction) -> NDArray[Any]:
        """The tensor of a function of constants; axes that are repeated have size 1."""
        atoms = [atom for group in _groups(function) for atom in group]
        places = [_placed(self._fixed[each.value].numpy(), each, atoms) for each in function.arguments]
        results = function.results.to(torch.int8) if function.results.dtype == torch.bool else function.results
        numbers = results.numpy()[tuple(places)]
        sizes = [atom.size for atom in atoms]
        return np.broadcast_to(numbers, sizes).reshape(
            [int(np.prod([atom.size for atom in group])) for group in _groups(function)]
        )

    def split(self, function: WholeFunction) -> tuple[NDArray[Any] | None, WholeFunction] | None:
        """The constant that is added to scores, None for 0, and what counts; None where inputs decide what is added."""
        results = function.results.to(torch.float64)
        kept = results > LEAST
        own = [at for at, each in enumerate(function.arguments) if each.value in self._fixed]
        others = [at for at in range(results.ndim) if at not in own]
        added = low = results
        if others:
            added = results.masked_fill(~kept, -torch.inf).amax(others)
            low = results.masked_fill(~kept, torch.inf).amin(others)
        if bool((added > low).any()):
            return None
        counts = without_idle(replace(function, results=kept))
        added = added.masked_fill(added <= LEAST, 0)
        constant = replace(function, arguments=tuple(function.arguments[at] for at in own), results=added)
        return self.constant(constant) if bool(added.any()) else None, counts

    def full(self, node: fx.Node, function: WholeFunction, table: NDArray[Any]) -> str:
        """A function as a value that is repeated along its axes, but for the batch's."""
        if not function.arguments:
            sizes = [abs(size) if size > 0 else 1 for size in function.shape]
            return self.add(node, FloatConstant, (), sizes, int(table) + 1, array=np.full(sizes, float(table)))
        narrow = name = self.written(node, function, table)
        sizes = list(self._at.shapes[name])
        for axis, into in enumerate(function.shape):
            if sizes[axis] != into and into > 0:
                sizes[axis] = into
                name = self._once(node, FloatConcat, (name,) * into, tuple(sizes), axis=axis)
        if name != narrow:
            self._at.narrow[name] = narrow
        return name

    def written(self, node: fx.Node, function: WholeFunction, table: NDArray[Any]) -> str:
        """A function as a value whose axes of size 1 are repeated: a product where each argument decides alone."""
        if not function.arguments:
            return self._at.constant(node, torch.full((1,) * len(function.axes), float(table)))
        key = "written", *_form(function), table.shape, table.tobytes()
        if key in self._made:
            return self._made[key]
        parts = _factors(table)
        if parts is None:
            if table.size > _MOST_COMBINATIONS:
                raise self._at.refused(
                    node, f"a mask must have at most {_MOST_COMBINATIONS:,} combinations of numbers, got {table.size:,}"
                )
            placed = [self._arranged(node, each, function) for each in function.arguments]
            shape = _common([self._at.shapes[each] for each in placed])
            made = self.add(node, FloatLookup, placed, shape, int(table.max()) + 1, table=table)
        else:
            factors = [
                self._arranged(node, self.looked_up(node, each, part), function)
                for each, part in zip(function.arguments, parts, strict=True)
            ]
            made = factors[0]
            for each in factors[1:]:
                shape = _common([self._at.shapes[made], self._at.shapes[each]])
                made = self.add(node, FloatProduct, (made, each), shape, 2)
        self._made[key] = made
        return made

    def summed(self, node: fx.Node, source: str, axis: int, count: int) -> str:
        """Sums up to and with each place along an axis of a value; so many numbers are possible."""
        shape = self._at.shapes[source]
        order = (*(at for at in range(len(shape)) if at != axis), axis)
        turned = tuple(shape[at] for at in order)
        if axis != order[axis]:
            source = self._once(node, FloatPermute, (source,), turned, order=order)
        key = "sum", source
        if key not in self._made:
            self._made[key] = self.add(node, FloatRunningSum, (source,), turned, count)
        if axis == order[axis]:
            return self._made[key]
        return self._once(
            node, FloatPermute, (self._made[key],), shape, order=tuple(map(order.index, range(len(order))))
        )

    def is_moved(self, name: str) -> bool:
        """Whether a value is numbers of inputs, as they are."""
        made = next((each for each in self._at.operations if each.name == name), None)
        if made is None:
            return True
        moves = isinstance(made, (FloatConcat, FloatPermute, FloatReshape, FloatSlice))
        return moves and all(self.is_moved(each) for each in made.sources)

    def looked_up(self, node: fx.Node, argument: WholeArgument, table: NDArray[Any]) -> WholeArgument:
        """What a table has for the numbers of a value."""
        if np.array_equal(table, np.arange(argument.count)):
            return argument
        key = "table", argument.value, table.tobytes()
        count = int(table.max()) + 1
        if key not in self._made:
            shape = self._at.shapes[argument.value]
            self._made[key] = made = self.add(node, FloatLookup, (argument.value,), shape, count, table=table)
            if argument.value in self._fixed:
                self._fixed[made] = torch.from_numpy(table)[self._fixed[argument.value]]
        return WholeArgument(self._made[key], argument.axes, max(count, 2))

    def sliced(
        self, node: fx.Node, argument: WholeArgument, atom: Atom, made: Group, cut: tuple[int, int, int]
    ) -> WholeArgument:  # fmt: skip
        """Parts of an argument along an axis, which is another one from then on."""
        start, stop, step = cut
        count = len(range(start, stop, step))
        if count == atom.size:
            return argument
        axis, shape = argument.axes.index(atom), list(self._at.shapes[argument.value])
        shape[axis] = count
        key = "slice", argument.value, axis, cut
        if key not in self._made:
            self._made[key] = self.add(
                node, FloatSlice, (argument.value,), shape, 0, axis=axis, start=start, stop=stop, step=step
            )
            if argument.value in self._fixed:
                own = [slice(None)] * len(shape)
                own[axis] = slice(start, stop, step)
                self._fixed[self._made[key]] = self._fixed[argument.value][tuple(own)]
        axes = (*argument.axes[:axis], made[0] if made else None, *argument.axes[axis + 1 :])
        return WholeArgument(self._made[key], axes, argument.count)

    def add(
        self, node: fx.Node, make: Any, sources: Sequence[str], result: Sequence[int], count: int, **given: Any
    ) -> str:  # fmt: skip
        """Puts an operation down; its result holds so many whole numbers, or as its source."""
        name = f"{node.name}.mask{len(self._at.operations)}"
        self._at.add(make, node, sources, name=name, **given)
        self._at.shapes[name] = tuple(result)
        if count:
            self._at.grids[name] = GivenGrid(
                bits=max(1, (count - 1).bit_length()), signed=False, scale=1.0, zero_point=0
            )
        return name

    def _arranged(self, node: fx.Node, argument: WholeArgument, function: WholeFunction) -> str:
        """A value with the axes of a function: of size 1 where it has none, repeated in axes made of several atoms."""
        groups = _groups(function)
        atoms = [atom for group in groups for atom in group]
        own = [atom for atom in argument.axes if atom is not None]
        order = sorted(own, key=atoms.index)
        name = argument.value
        if order != own:
            axes = tuple(argument.axes.index(atom) for atom in order)
            shape = tuple(self._at.shapes[name][axis] for axis in axes)
            kept = tuple(axis for axis, atom in enumerate(argument.axes) if atom is None)
            name = self._once(node, FloatPermute, (name,), (*((1,) * len(kept)), *shape), order=(*kept, *axes))
        wide = [atom.size if atom in own else 1 for atom in atoms]
        if any(len(group) > 1 and not set(group) <= set(own) for group in groups):
            name = self._shaped(node, name, tuple(wide))
            for axis, atom in enumerate(atoms):
                if atom not in own and atom.size < 0:
                    raise self._at.refused(node, "a mask must not be joined to samples of the batch that it lacks")
                if atom not in own and any(atom in group and len(group) > 1 for group in groups):
                    wide[axis] = atom.size
                    name = self._once(node, FloatConcat, (name,) * atom.size, tuple(wide), axis=axis)
        sizes = dict(zip(atoms, wide, strict=True))
        return self._shaped(node, name, tuple(_size([sizes[atom] for atom in group]) for group in groups))

    def _shaped(self, node: fx.Node, name: str, shape: tuple[int, ...]) -> str:
        return name if self._at.shapes[name] == shape else self._once(node, FloatReshape, (name,), shape, shape=shape)

    def _once(self, node: fx.Node, make: Any, sources: tuple[str, ...], result: tuple[int, ...], **given: Any) -> str:
        """The same operation on the same values is put down once; its result has the shape given."""
        key = make, sources, result, *given.values()
        if key not in self._made:
            self._made[key] = self.add(node, make, sources, result, 0, **given)
        return self._made[key]


def _groups(function: WholeFunction) -> tuple[Group, ...]:
    """A function's axes, those along which it does not differ without atoms."""
    return tuple(group if any(atom in function.used for atom in group) else () for group in function.axes)


def _form(function: WholeFunction) -> tuple[Any, ...]:
    """What a function reads, and where: equal for functions of the same values along the same axes."""
    groups = _groups(function)
    places = {atom: at for at, atom in enumerate(atom for group in groups for atom in group)}
    sizes = tuple(tuple(atom.size for atom in group) for group in groups)
    return sizes, *((each.value, *(places.get(atom) for atom in each.axes if atom)) for each in function.arguments)


def _size(sizes: Sequence[int]) -> int:
    found = 1
    for each in sizes:
        found *= each
    return found


def _common(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape that shapes of one rank broadcast to; multiples of the batch are negative."""
    return tuple(next((size for size in sizes if size != 1), 1) for sizes in zip(*shapes, strict=True))


def _placed(numbers: NDArray[Any], argument: WholeArgument, atoms: Sequence[Atom]) -> NDArray[Any]:
    """The numbers of an argument with an axis for each atom."""
    own = [atom for atom in argument.axes if atom is not None]
    order = sorted(range(len(own)), key=lambda at: atoms.index(own[at]))
    wide = [atom.size if atom in own else 1 for atom in atoms]
    return numbers.reshape([atom.size for atom in own]).transpose(order).reshape(wide)


def _factors(table: NDArray[Any]) -> list[NDArray[Any]] | None:
    """Tables of one argument each whose product a table is; None where arguments do not decide alone."""
    if table.ndim == 1:
        return [table]
    if table.max() > 1:
        return None
    found = [table.max(axis=tuple(axis for axis in range(table.ndim) if axis != at)) for at in range(table.ndim)]
    product = np.ones(table.shape, np.int64)
    for at, each in enumerate(found):
        product = product * each.reshape([-1 if axis == at else 1 for axis in range(table.ndim)])
    return found if np.array_equal(product, table) else None

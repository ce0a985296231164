"""Writes an integer graph: values, constants and the operations that move numbers into the order that one needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stoker.deploy.arithmetic.requantising import multipliers_of
from stoker.deploy.ir import operations as op
from stoker.deploy.ir.graph import Integers
from stoker.deploy.ir.row_numbers import stated
from stoker.deploy.ir.shapes import shape_of
from stoker.deploy.ir.values import IntegerValue
from stoker.deploy.lowering.grids import Grid
from stoker.deploy.lowering.layout import BATCH, Atom, Group, Laid, size_of, without_batch


class Writer:
    """A graph being written.

    Attributes:
        values: by name.
        operations: in order.
        constants: by name.
    """

    def __init__(self) -> None:
        self.values: dict[str, IntegerValue] = {}
        self.operations: list[op.Operation] = []
        self.constants: dict[str, Integers] = {}
        self._arranged: dict[tuple[str, tuple[Group, ...]], str] = {}
        self._fixed: dict[str, Integers] = {}
        """Values that are the same for each sample."""

    def grid(self, name: str) -> Grid:
        """A value's grid."""
        value = self.values[name]
        return Grid(bits=value.bits, signed=value.signed, scale=value.scale, zero_point=value.zero_point)

    def value(self, name: str, shape: Sequence[int], grid: Grid, ends: tuple[int, int] | None = None) -> str:
        """A new value; its name gets a number if it is taken. Its range is the type's until it is derived."""
        unique, count = name, 1
        while unique in self.values:
            count += 1
            unique = f"{name}.{count}"
        low, high = ends or grid.ends
        self.values[unique] = IntegerValue(
            name=unique, shape=tuple(shape), bits=grid.bits, signed=grid.signed, scale=grid.scale,
            zero_point=grid.zero_point, low=low, high=high,
        )  # fmt: skip
        return unique

    def row_numbers(self, name: str, highs: NDArray[np.int64], grid: Grid, *, joined: bool = False) -> str:
        """A new value whose largest number at each place is given; -1 where nothing reads it.

        Alike ones are stated once, unless the value is joined to others, whose places may differ from its.
        """
        high, by_place = stated(highs, short=not joined)
        unique = self.value(name, highs.shape, grid, (0, high))
        self.values[unique] = _changed(self.values[unique], highs=by_place)
        return unique

    def constant(self, name: str, array: NDArray[Any]) -> str:
        """A new constant, in the narrowest type that holds it."""
        unique = name
        while unique in self.constants:
            unique += "'"
        self.constants[unique] = np.ascontiguousarray(array).astype(narrowest(array))
        return unique

    def write(self, operation: op.Operation) -> str:
        """Puts an operation down; its result's name."""
        self.operations.append(operation)
        return operation.output

    def write_shaped(self, operation: op.Operation) -> str:
        """The same for an operation whose result's shape follows from what it reads."""
        shape = shape_of(operation, self.values, self.constants)
        self.values[operation.output] = _changed(self.values[operation.output], shape=shape)
        return self.write(operation)

    def is_computed(self, name: str) -> bool:
        """Whether a value differs from sample to sample."""
        return name not in self._fixed

    def fixed(self, name: str, array: Integers, grid: Grid) -> str:
        """A value that is the same for each sample."""
        made = self.value(name, array.shape, grid)
        self._fixed[made] = array
        return self.write(op.FixedValue(output=made, array=self.constant(f"{made}.array", array)))

    def requantiser(
        self, name: str, ratios: NDArray[np.float64], grid: Grid, ends: tuple[int, int] | None = None
    ) -> op.Requantiser:
        """Multipliers and a shift for ratios of the accumulator's step to the result's."""
        multipliers, shift = multipliers_of(ratios)
        low, high = ends or grid.ends
        return op.Requantiser(
            multiplier=self.constant(f"{name}.multiplier", multipliers), shift=shift, zero_point=grid.zero_point,
            low=low, high=high,
        )  # fmt: skip

    def arranged(self, laid: Laid, groups: Sequence[Group]) -> str:
        """A value whose axes are groups of atoms, moved there if they lie otherwise; batch atoms are left out."""
        wanted = tuple(without_batch(group) for group in groups)
        key = laid.value, wanted
        if key not in self._arranged:
            self._arranged[key] = self._arrange(laid, wanted)
        return self._arranged[key]

    def rescaled(self, name: str, grid: Grid) -> str:
        """A value on another grid."""
        if self.grid(name) == grid:
            return name
        ratio = np.array([self.values[name].scale / grid.scale])
        output = self.value(f"{name}.rescaled", self.values[name].shape, grid)
        by = self.requantiser(output, ratio, grid)
        return self.write(op.Rescale(source=name, output=output, requantiser=by))

    def moved(self, name: str, shape: Sequence[int], **changes: Any) -> str:
        """A new value on the grid of another, for its numbers elsewhere."""
        old = self.values[name]
        made = self.value(name.partition("@")[0] + "@moved", shape, self.grid(name))
        self.values[made] = _changed(self.values[made], low=old.low, high=old.high, **changes)
        return made

    def _arrange(self, laid: Laid, groups: tuple[Group, ...]) -> str:
        shape = tuple(size_of(group) for group in groups)
        order = tuple(atom for group in groups for atom in group)
        assert set(order) == set(laid.order), "each atom of a value has a place in its arrangement"
        if laid.value in self._fixed:
            sizes = [atom.size for atom in laid.order]
            places = [laid.order.index(atom) for atom in order]
            array = self._fixed[laid.value].reshape(sizes).transpose(places).reshape(shape)
            same = shape == self.values[laid.value].shape and order == laid.order
            return laid.value if same else self.fixed(f"{laid.value}@moved", array, self.grid(laid.value))
        name = laid.value
        if order != laid.order:
            runs = _runs(laid.order, order)
            name = self.reshaped(name, [size_of(run) for run in runs])
            turned = sorted(range(len(runs)), key=lambda at: order.index(runs[at][0]))
            output = self.moved(name, [size_of(runs[at]) for at in turned])
            self.write(op.Permute(source=name, output=output, order=tuple(turned)))
            name = output
        return self.reshaped(name, shape)

    def reshaped(self, name: str, shape: Sequence[int]) -> str:
        """The same numbers in the same order under another shape."""
        if self.values[name].shape == tuple(shape):
            return name
        output = self.moved(name, shape)
        return self.write(op.Reshape(source=name, output=output))


def fresh(groups: Sequence[Group]) -> tuple[Group, ...]:
    """New atoms for groups, one each; the batch stays, a size of 1 has none."""
    return tuple(
        (*((BATCH,) if BATCH in group else ()), *((Atom(size_of(group)),) if size_of(group) > 1 else ()))
        for group in groups
    )


def with_channels(name: str, before: tuple[Group, ...], rows: Group, out: Atom) -> Laid:
    """A tensor with a new last axis, which lies last in memory."""
    last: Group = (out,) if out.size > 1 else ()
    return Laid(name, (*before, last), (*rows, *last))


def narrowest(array: NDArray[Any]) -> np.dtype[Any]:
    """The narrowest whole-number dtype that holds an array."""
    low, high = int(array.min(initial=0)), int(array.max(initial=0))
    for kind in (np.int8, np.uint8, np.int16, np.uint16, np.int32):
        if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
            return np.dtype(kind)
    return np.dtype(np.int64)


def _runs(order: Group, wanted: Group) -> list[Group]:
    """Atoms that stay together, in the order of memory."""
    place = {atom: at for at, atom in enumerate(wanted)}
    runs: list[Group] = []
    for atom in order:
        if runs and place[atom] == place[runs[-1][-1]] + 1:
            runs[-1] = (*runs[-1], atom)
        else:
            runs.append((atom,))
    return runs


def _changed(value: IntegerValue, **changes: Any) -> IntegerValue:
    fields = {name: getattr(value, name) for name in value.__struct_fields__}
    return IntegerValue(**(fields | changes))

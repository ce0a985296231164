# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Masks that depend on inputs: from whole numbers and truth values to what a softmax counts.

What is made of such inputs element by element is a function of them (:mod:`.whole_functions`), and no operation is
written for it until something reads it. Scores to which one is added that holds 0 and -inf, or that are filled with
-inf where one is true, are the scores that they were, with a note of what counts; a softmax takes both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
    FloatSlice,
    GivenGrid,
)
from stoker.deploy.importing.matching import MASKS, Matcher, arguments
from stoker.deploy.importing.whole_functions import WholeArgument, WholeFunction, computed, of_number, of_value
from stoker.deploy.lowering.layout import Atom, Group

LEAST = -1e4
"""What is added to scores and is at most this leaves an element out: -10,000, the least number and -inf are usual."""
_MOST_BITS = 16
_POINTWISE = frozenset(
    (
        "eq", "ne", "lt", "le", "gt", "ge", "logical_not", "logical_and", "logical_or", "logical_xor", "bitwise_not",
        "bitwise_and", "bitwise_or", "bitwise_xor", "__and__", "__or__", "__xor__", "add", "sub", "rsub", "mul", "div",
        "neg", "abs", "to", "_to_copy", "masked_fill", "where", "zeros_like", "ones_like", "full_like", "clamp",
        "clamp_min", "clamp_max", "relu", "clone", "detach", "alias", "contiguous", "lift_fresh_copy",
    )
)  # fmt: skip
"""Operations that work element by element, by names without an overload."""
_SAME = frozenset(("to", "_to_copy", "clone", "detach", "alias", "contiguous", "lift_fresh_copy", "dropout"))
"""Those that leave scores as they are."""
_RESHAPES = frozenset(("view", "reshape", "_unsafe_view", "flatten", "unflatten", "unsqueeze", "squeeze"))
_PERMUTES = frozenset(("permute", "transpose", "t"))


@dataclass(frozen=True, slots=True)
class _Scores:
    """Real numbers of which some count: all are as they were before others became -inf.

    Attributes:
        value: name of the real numbers.
        counts: a function that is 1 where they do.
    """

    value: str
    counts: WholeFunction


class Masks:
    """The masks of a graph that is being matched.

    Args:
        at: the graph.
    """

    def __init__(self, at: Matcher) -> None:
        self._at = at
        self._functions: dict[str, WholeFunction] = {}
        self._scores: dict[str, _Scores] = {}
        self._fixed: dict[str, torch.Tensor] = {}
        """Whole numbers of values that are constant."""
        self._made: dict[tuple[Any, ...], str] = {}
        """Values that were written already."""

    def enter(self, node: fx.Node, count: int) -> None:
        """An input of whole numbers from 0 on, so many."""
        kind = node.meta["val"].dtype
        self._functions[node.name] = of_value(
            node.name, self._at.shapes[node.name], count, torch.arange(count).to(kind)
        )

    def take(self, node: fx.Node) -> bool:
        """Whether a node is a mask or masks scores; then nothing else is to be done for it.

        Raises:
            ModelImportError: it masks in a way that integers don't have.
        """
        name = _called(node)
        made: WholeFunction | _Scores | str | None = self._masked(node, name)
        if made is None:
            made = self._function_of(node, name)
        if made is None:
            return False
        if isinstance(made, str):
            self._at.alias(node, made)
            if _is_in_place(node):
                self._at.replace(node)
            return True
        self._note(node.name, made)
        first = node.args[0] if node.args else None
        if _is_in_place(node) and isinstance(first, fx.Node):
            self._at.overwritten(node, first)
            self._note(first.name, made)
        return True

    def value(self, node: fx.Node, argument: fx.Node) -> str | None:
        """The value of a mask that something else than a softmax reads; None for what is none.

        Raises:
            ModelImportError: it holds what whole numbers from 0 on do not, or is scores of which some are -inf.
        """
        if argument.name in self._scores:
            raise self._at.refused(
                node, f"scores of which a mask leaves some out must be read by a softmax alone; {MASKS}"
            )
        found = self._functions.get(argument.name)
        if found is None:
            return None
        table = _whole(found.results)
        if table is None:
            raise self._at.refused(
                node, f"`{argument.name}` must hold whole numbers from 0 on, or mask scores before a softmax; {MASKS}"
            )
        narrow = name = self._written(node, found, table)
        sizes = list(self._at.shapes[name])
        for axis, into in enumerate(found.shape):
            if sizes[axis] != into and into > 0:
                sizes[axis] = into
                name = self._once(node, FloatConcat, (name,) * into, tuple(sizes), axis=axis)
        if name != narrow:
            self._at.narrow[name] = narrow
        return name

    def rows(
        self, node: fx.Node, argument: Any, order: Sequence[int] | None = None
    ) -> tuple[str, str | None, NDArray[Any] | None]:  # fmt: skip
        """What a softmax reads: the value of its scores, the value that says what counts, or a constant that does.

        Args:
            node: the softmax.
            argument: its scores.
            order: of the scores' axes, in which rows are last, for what counts.
        """
        found = self._scores.get(argument.name) if isinstance(argument, fx.Node) else None
        if found is None:
            return self._at.value(node, argument), None, None
        rank = len(self._at.shapes[found.value])
        return found.value, *self._counted(node, found.counts.ranked(rank), order)

    def counts(self, node: fx.Node, argument: Any, rank: int) -> tuple[str | None, NDArray[Any] | None]:
        """What an attention counts by its mask: a value that says so, or a constant that does, or neither.

        Args:
            node: the attention.
            argument: its mask, of truth values or added to scores.
            rank: of the scores.

        Raises:
            ModelImportError: the mask is no function of whole inputs, or adds something else than 0 and -inf.
        """
        if (
            isinstance(argument, fx.Node)
            and argument.name not in self._functions
            and not self._at.is_constant(argument)
        ):
            raise self._at.refused(node, f"`attn_mask` must be constant, or made of whole inputs alone; {MASKS}")
        found = self._function(node, argument)
        if found is None:
            raise self._at.refused(node, "`attn_mask` must hold 0 and -inf only")
        if found.results.dtype != torch.bool:
            left_out = found.results <= LEAST
            if not (left_out | (found.results == 0)).all():
                raise self._at.refused(node, "`attn_mask` must hold 0 and -inf only")
            found = replace(found, results=~left_out)
        return self._counted(node, found.ranked(rank), None)

    def _note(self, name: str, made: WholeFunction | _Scores) -> None:
        self._functions.pop(name, None)
        self._scores.pop(name, None)
        if isinstance(made, _Scores):
            self._scores[name] = made
        else:
            self._functions[name] = made

    def _function_of(self, node: fx.Node, name: str) -> WholeFunction | None:
        """A node that is made of functions and constants alone."""
        tensors = [each for each in node.all_input_nodes if isinstance(each.meta.get("val"), torch.Tensor)]
        if not any(each.name in self._functions for each in tensors):
            return None
        first = self._functions.get(node.args[0].name) if isinstance(node.args[0], fx.Node) else None
        if name == "index" and first is not None:
            return self._indexed(node, first, arguments(node)["indices"])
        if name in _POINTWISE and all(self._is_known(each) for each in tensors):
            found = self._computed(node, tensors)
            return None if found is None else self._narrowed(node, found)
        if first is None or len(tensors) > 1:
            return None
        if name in _RESHAPES:
            return first.reshaped(self._at.shape(node))
        if name == "expand":
            return first.expanded(self._at.shape(node))
        if name in _PERMUTES:
            return first.permuted(permutation(node, len(first.axes)))
        if name in ("slice", "select"):
            return self._cut(node, first, whole=name == "slice")
        return None

    def _is_known(self, node: fx.Node) -> bool:
        return node.name in self._functions or self._at.is_constant(node)

    def _function(self, node: fx.Node, argument: Any) -> WholeFunction | None:
        """An argument as a function; None for a constant of too many different numbers."""
        if isinstance(argument, fx.Node) and argument.name in self._functions:
            return self._functions[argument.name]
        found = self._at.operand(node, argument)
        assert not isinstance(found, str)
        numbers, where = torch.unique(found, return_inverse=True)
        if len(numbers) == 1:
            return of_number(found.shape, found.flatten()[0])
        if len(numbers) > 1 << 8:
            return None
        key = ("constant", found.dtype, tuple(found.shape), found.numpy().tobytes())
        if key not in self._made:
            made = self._add(node, FloatConstant, (), found.shape, len(numbers), array=where.numpy().astype(np.float64))
            self._made[key], self._fixed[made] = made, where
        return of_value(self._made[key], found.shape, len(numbers), numbers)

    def _computed(self, node: fx.Node, tensors: Sequence[fx.Node]) -> WholeFunction | None:
        """A pointwise node, computed by torch for all numbers."""
        functions = [self._function(node, each) for each in tensors]
        known = [each for each in functions if each is not None]
        if len(known) < len(functions):
            return None
        kind = node.meta["val"].dtype

        def compute(operands: Sequence[torch.Tensor]) -> torch.Tensor:
            by_node = dict(zip(tensors, operands, strict=True))
            own = fx.map_arg((node.args, node.kwargs), lambda each: by_node.get(each, each.meta.get("val")))
            # What an operation in place writes to may have fewer combinations than its result.
            target: Any = getattr(torch.ops.aten, _called(node)) if _is_in_place(node) else node.target
            return target(*own[0], **own[1]).to(kind)

        return computed(compute, known)

    def _narrowed(self, node: fx.Node, found: WholeFunction) -> WholeFunction:
        """A function of one value of many numbers that has two results, as one of a value of two."""
        if len(found.arguments) != 1 or found.arguments[0].count == 2:
            return found
        numbers, where = torch.unique(found.results, return_inverse=True)
        if len(numbers) > 2:
            return found
        argument = self._looked_up(node, found.arguments[0], where.numpy())
        return replace(found, arguments=(argument,), results=numbers)

    def _cut(self, node: fx.Node, function: WholeFunction, *, whole: bool) -> WholeFunction | None:
        """Parts of an axis, or one without the axis."""
        given = arguments(node)
        axis = int(given["dim"]) % len(function.axes)
        group, size = function.axes[axis], function.shape[axis]
        if size < 0 and whole and self._at.shape(node) == function.shape:
            return function
        if size < 0 or len(group) > 1:
            return None
        start, stop, step = 0, 1, 1
        if whole:
            start, stop, step = slice(given["start"], given["end"], given["step"]).indices(size)
        else:
            start = int(given["index"]) % size
            stop = start + 1
        count = len(range(start, stop, step))
        made: Group = (Atom(count),) if count > 1 else ()
        if count == size:
            made = group
        own = tuple(
            self._sliced(node, each, group[0], made, (start, stop, step)) if group and group[0] in each.axes else each
            for each in function.arguments
        )
        axes = (*function.axes[:axis], *((made,) if whole else ()), *function.axes[axis + 1 :])
        return replace(function, axes=axes, arguments=own)

    def _indexed(self, node: fx.Node, function: WholeFunction, indices: Sequence[Any]) -> WholeFunction | None:
        """``mask[batch, keys]`` of ranges, each along its own axis, as libraries write masks that they broadcast."""
        if len(indices) != len(function.axes) or any(each is None for each in indices):
            return None
        rank = len(self._at.shape(node))
        axes: list[Group] = [()] * rank
        own = function.arguments
        for group, size, each in zip(function.axes, function.shape, indices, strict=True):
            found = self._at.range_of(each, rank)
            if found is None or axes[found[0]] or len(group) > 1:
                return None
            axis, start, stop = found
            if size < 0 or (start, stop) == (0, size):
                if (start, stop) != (0, size):
                    return None
                axes[axis] = group
                continue
            made: Group = (Atom(stop - start),) if stop - start > 1 else ()
            own = tuple(
                self._sliced(node, one, group[0], made, (start, stop, 1)) if group and group[0] in one.axes else one
                for one in own
            )
            axes[axis] = made
        return replace(function, axes=tuple(axes), arguments=own)

    def _sliced(
        self, node: fx.Node, argument: WholeArgument, atom: Atom, made: Group, cut: tuple[int, int, int]
    ) -> WholeArgument:  # fmt: skip
        start, stop, step = cut
        count = len(range(start, stop, step))
        if count == atom.size:
            return argument
        axis, shape = argument.axes.index(atom), list(self._at.shapes[argument.value])
        shape[axis] = count
        key = "slice", argument.value, axis, cut
        if key not in self._made:
            self._made[key] = self._add(
                node, FloatSlice, (argument.value,), shape, 0, axis=axis, start=start, stop=stop, step=step
            )
            if argument.value in self._fixed:
                own = [slice(None)] * len(shape)
                own[axis] = slice(start, stop, step)
                self._fixed[self._made[key]] = self._fixed[argument.value][tuple(own)]
        axes = (*argument.axes[:axis], made[0] if made else None, *argument.axes[axis + 1 :])
        return WholeArgument(self._made[key], axes, argument.count)

    def _masked(self, node: fx.Node, name: str) -> _Scores | str | None:
        """A node that leaves some of its scores out, or makes some of its numbers 0, a value; None for another one."""
        first = node.args[0] if node.args else None
        if name in _SAME and isinstance(first, fx.Node) and first.name in self._scores:
            return self._scores[first.name]
        if name not in ("add", "sub", "masked_fill", "where"):
            return None
        given = arguments(node)
        if name in ("add", "sub"):
            return self._added(node, given, -1 if name == "sub" else 1)
        if name == "masked_fill":
            return self._filled(node, given["self"], given["mask"], given["value"], kept=False)
        if self._is_real(given["self"]):
            return self._filled(node, given["self"], given["condition"], given["other"], kept=True)
        return self._filled(node, given["other"], given["condition"], given["self"], kept=False)

    def _is_real(self, argument: Any) -> bool:
        return (
            isinstance(argument, fx.Node) and argument.name not in self._functions
            and (argument.name in self._scores or not self._at.is_constant(argument))
        )  # fmt: skip

    def _added(self, node: fx.Node, given: Mapping[str, Any], sign: int) -> _Scores | None:
        """Scores and a mask of 0 and -inf."""
        scores, mask = given["self"], given["other"]
        if sign > 0 and self._is_real(mask):
            scores, mask = mask, scores
        if not self._is_real(scores) or not isinstance(mask, fx.Node) or not self._is_known(mask):
            return None
        if mask.name not in self._functions and not self._leaves_out(node, mask, sign):
            return None
        found = self._function(node, mask)
        if found is None or not (found.results * sign <= LEAST).any():
            return None
        left_out = found.results * sign <= LEAST
        if given.get("alpha", 1) != 1 or not (left_out | (found.results == 0)).all():
            raise self._at.refused(
                node, f"a mask that is added to scores must hold 0, and -inf or {LEAST:,.0f} and less; {MASKS}"
            )
        return self._with(node, scores, replace(found, results=~left_out))

    def _leaves_out(self, node: fx.Node, mask: fx.Node, sign: int) -> bool:
        """Whether a constant holds what leaves an element out."""
        found = self._at.operand(node, mask)
        return not isinstance(found, str) and found.numel() > 1 and bool((found * sign <= LEAST).any())

    def _filled(self, node: fx.Node, scores: Any, mask: Any, fill: Any, *, kept: bool) -> _Scores | str | None:
        """Scores that are -inf where a mask is true, or where it is not if it says what is kept; or 0, by a product."""
        if not self._is_real(scores) or not isinstance(mask, fx.Node) or not self._is_known(mask):
            return None
        if isinstance(fill, fx.Node) and not self._at.is_constant(fill):
            return None
        number = self._at.operand(node, fill)
        condition = self._function(node, mask)
        if isinstance(number, str) or number.numel() != 1 or condition is None:
            return None
        counts = replace(condition, results=condition.results.to(torch.bool) == kept)
        if float(number) <= LEAST:
            return self._with(node, scores, counts)
        if float(number) == 0 and scores.name not in self._scores:
            value = self._at.value(node, scores)
            if self._at.shapes[value] == self._at.shape(node):
                factor = self._written(node, counts.ranked(len(self._at.shape(node))), counts.results.long().numpy())
                return self._at.add(FloatProduct, node, [value, factor])
        raise self._at.refused(
            node, f"values must be filled with 0, or with -inf before a softmax, got {float(number)}; {MASKS}"
        )

    def _with(self, node: fx.Node, scores: fx.Node, counts: WholeFunction) -> _Scores:
        """Scores of which less counts than before."""
        before = self._scores.get(scores.name)
        value = self._at.value(node, scores) if before is None else before.value
        shape = self._at.shapes[value]
        if shape != self._at.shape(node):
            raise self._at.refused(node, f"a mask must not make scores larger, got {self._at.shape(node)} of {shape}")
        if before is not None:
            both = computed(lambda each: torch.logical_and(*each), [before.counts, counts])
            if both is None:
                raise self._at.refused(node, f"masks must have axes that fit each other; {MASKS}")
            counts = both
        return _Scores(value, counts)

    def _counted(
        self, node: fx.Node, counts: WholeFunction, order: Sequence[int] | None
    ) -> tuple[str | None, NDArray[Any] | None]:  # fmt: skip
        """A function of truth values as a value, or as a constant; neither where all counts."""
        if bool(counts.results.all()):
            return None, None
        if order is not None:
            counts = counts.permuted(order)
        if all(each.value in self._fixed for each in counts.arguments):
            return None, self._constant(counts)
        return self._written(node, counts, counts.results.long().numpy()), None

    def _constant(self, function: WholeFunction) -> NDArray[Any]:
        """The tensor of a function of constants; axes that are repeated have size 1."""
        atoms = [atom for group in _groups(function) for atom in group]
        places = [_placed(self._fixed[each.value].numpy(), each, atoms) for each in function.arguments]
        numbers = function.results.to(torch.int8).numpy()[tuple(places)]
        sizes = [atom.size for atom in atoms]
        return np.broadcast_to(numbers, sizes).reshape(
            [int(np.prod([atom.size for atom in group])) for group in _groups(function)]
        )

    def _written(self, node: fx.Node, function: WholeFunction, table: NDArray[Any]) -> str:
        """A function as a value whose axes of size 1 are repeated: a product where each argument decides alone."""
        if not function.arguments:
            return self._at.constant(node, torch.full((1,) * len(function.axes), float(table)))
        key = "written", _groups(function), function.arguments, table.shape, table.tobytes()
        if key in self._made:
            return self._made[key]
        parts = _factors(table)
        if parts is None:
            placed = [self._arranged(node, each, function) for each in function.arguments]
            shape = _common([self._at.shapes[each] for each in placed])
            made = self._add(node, FloatLookup, placed, shape, int(table.max()) + 1, table=table)
        else:
            factors = [
                self._arranged(node, self._looked_up(node, each, part), function)
                for each, part in zip(function.arguments, parts, strict=True)
            ]
            made = factors[0]
            for each in factors[1:]:
                shape = _common([self._at.shapes[made], self._at.shapes[each]])
                made = self._add(node, FloatProduct, (made, each), shape, 2)
        self._made[key] = made
        return made

    def _looked_up(self, node: fx.Node, argument: WholeArgument, table: NDArray[Any]) -> WholeArgument:
        """What a table has for the numbers of a value."""
        if np.array_equal(table, np.arange(argument.count)):
            return argument
        key = "table", argument.value, table.tobytes()
        count = int(table.max()) + 1
        if key not in self._made:
            shape = self._at.shapes[argument.value]
            self._made[key] = made = self._add(node, FloatLookup, (argument.value,), shape, count, table=table)
            if argument.value in self._fixed:
                self._fixed[made] = torch.from_numpy(table)[self._fixed[argument.value]]
        return WholeArgument(self._made[key], argument.axes, max(count, 2))

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
            self._made[key] = self._add(node, make, sources, result, 0, **given)
        return self._made[key]

    def _add(
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


def permutation(node: fx.Node, rank: int) -> tuple[int, ...]:
    """The order of axes that a node puts a tensor into."""
    given = arguments(node)
    if "dims" in given:
        return tuple(int(axis) % rank for axis in given["dims"])
    order = list(range(rank))
    first, second = (int(given.get(name, default)) % rank for name, default in (("dim0", 0), ("dim1", 1)))
    order[first], order[second] = order[second], order[first]
    return tuple(order)


def _called(node: fx.Node) -> str:
    """The name of an operation of torch without its overload, or the sign that it works in place."""
    parts = str(node.target).split(".")
    if len(parts) < 2 or parts[0] != "aten":
        return ""
    return parts[1].removesuffix("_") if _is_in_place(node) else parts[1]


def _is_in_place(node: fx.Node) -> bool:
    schema: Any = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _groups(function: WholeFunction) -> tuple[Group, ...]:
    """A function's axes, those along which it does not differ without atoms."""
    return tuple(group if any(atom in function.used for atom in group) else () for group in function.axes)


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


def _whole(results: torch.Tensor) -> NDArray[Any] | None:
    """Results as whole numbers from 0 on; None where they are others."""
    numbers = results.to(torch.float64).numpy()
    if not np.isfinite(numbers).all() or (numbers != np.floor(numbers)).any():
        return None
    return numbers.astype(np.int64) if 0 <= numbers.min() <= numbers.max() < 1 << _MOST_BITS else None


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

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

from stoker.deploy.floating.operations import FloatConcat, FloatProduct, FloatReshape, FloatSum
from stoker.deploy.importing.advice import MASKS
from stoker.deploy.importing.exporting import is_in_place
from stoker.deploy.importing.mask_values import LEAST, MaskValues
from stoker.deploy.importing.matching import Matcher, arguments, called, is_row_numbers
from stoker.deploy.importing.whole_functions import MOST_RESULTS, WholeFunction, computed, of_value
from stoker.deploy.lowering.layout import Atom, Group

_MOST_BITS = 16
_POINTWISE = frozenset(
    (
        "eq", "ne", "lt", "le", "gt", "ge", "logical_not", "logical_and", "logical_or", "logical_xor", "bitwise_not",
        "bitwise_and", "bitwise_or", "bitwise_xor", "__and__", "__or__", "__xor__", "add", "sub", "rsub", "mul", "div",
        "neg", "abs", "to", "_to_copy", "masked_fill", "where", "zeros_like", "ones_like", "full_like", "clamp",
        "clamp_min", "clamp_max", "relu", "clone", "detach", "alias", "contiguous", "lift_fresh_copy", "type_as",
    )
)  # fmt: skip
"""Operations that work element by element, by names without an overload."""
_SAME = frozenset(("to", "_to_copy", "clone", "detach", "alias", "contiguous", "lift_fresh_copy", "dropout"))
"""Those that leave scores as they are."""
_SHAPED = frozenset(("zeros_like", "ones_like", "full_like"))
"""Those whose results depend on no number that they read."""
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
        self._values = MaskValues(at)
        self._sums: dict[str, WholeFunction] = {}
        """What running sums are of, by the sum's value; alike along all axes."""
        self._folded: dict[str, None] = {}
        self._too_many: dict[str, int] = {}
        """Inputs of more numbers than a function is computed for, with how many."""

    @property
    def folded(self) -> tuple[str, ...]:
        """Values that masks were made of and do not depend on, for the numbers that these can hold."""
        return tuple(self._folded)

    def enter(self, node: fx.Node, count: int) -> None:
        """An input of whole numbers from 0 on, so many; one that nothing reads is no function."""
        if not node.users:
            return
        if count > MOST_RESULTS:
            self._too_many[node.name] = count
            return
        kind = node.meta["val"].dtype
        self._functions[node.name] = of_value(
            node.name, self._at.shapes[node.name], count, torch.arange(count).to(kind)
        )

    def take(self, node: fx.Node) -> bool:
        """Whether a node is a mask or masks scores; then nothing else is to be done for it.

        Raises:
            ModelImportError: it masks in a way that integers don't have.
        """
        name = called(node)
        if is_row_numbers(node) and not any(self._is_computed(each) for each in node.all_input_nodes):
            return False  # bounded by place, which a function is not
        if name not in ("embedding", "embedding_bag"):
            self._check_count(node)
        made: WholeFunction | _Scores | str | None = self._masked(node, name)
        if made is None:
            made = self._function_of(node, name)
        if made is None:
            return False
        if isinstance(made, str):
            self._at.alias(node, made)
            if is_in_place(node):
                self._at.replace(node)
            return True
        for each in self._at.overwritten(node) if is_in_place(node) else [node]:
            self._note(each.name, made)
        return True

    def forget(self, node: fx.Node) -> None:
        """A node is another value from now on."""
        self._functions.pop(node.name, None)
        self._scores.pop(node.name, None)

    def _check_count(self, node: fx.Node) -> None:
        """Refuses what computes with an input of too many numbers."""
        for each in node.all_input_nodes:
            if each.name in self._too_many:
                raise self._at.refused(
                    node, f"`{each.name}` must hold numbers from 0 to {MOST_RESULTS - 1:,} where anything but a table "
                    f"reads them, and samples or tables have up to {self._too_many[each.name] - 1:,}; make real "
                    "numbers of larger ones in the loader, such as by `x.float()`",
                )  # fmt: skip

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
                node,
                f"`{argument.name}` must hold whole numbers from 0 on, or mask scores before a softmax; {MASKS}; "
                "make real numbers of images in the loader, such as by `x.float() / 255`",
            )
        return self._values.full(node, found, table)

    def check_rows(self, node: fx.Node, argument: fx.Node, count: int) -> None:
        """Refuses row numbers that are computed and may be past a table.

        Args:
            node: the lookup.
            argument: its row numbers.
            count: rows of the table.

        Raises:
            ModelImportError: they may be.
        """
        found = self._functions.get(argument.name)
        if found is None or not self._is_computed(argument):
            return
        low, high = int(found.results.min()), int(found.results.max())
        if low < 0 or high >= count:
            raise self._at.refused(
                node, f"row numbers that are computed must be rows of the table, 0 to {count - 1}, and those of inputs "
                f"of this shape go from {low} to {high}; give shorter samples, or make the table larger",
            )  # fmt: skip

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

    def counts(
        self, node: fx.Node, argument: Any, scores: str
    ) -> tuple[str, str | None, NDArray[Any] | None]:  # fmt: skip
        """What an attention counts by its mask: its scores, a value that says so, or a constant that does, or neither.

        Args:
            node: the attention.
            argument: its mask, of truth values or added to scores.
            scores: as they are; what else a mask adds to them is added.

        Raises:
            ModelImportError: the mask is no function of whole inputs, or adds what depends on them to what counts.
        """
        rank = len(self._at.shapes[scores])
        if (
            isinstance(argument, fx.Node)
            and argument.name not in self._functions
            and not self._at.is_constant(argument)
        ):
            raise self._at.refused(node, f"`attn_mask` must be constant, or made of whole inputs alone; {MASKS}")
        added: NDArray[Any] | None = None
        constant = self._at.operand(node, argument) if self._at.is_constant(argument) else None
        if isinstance(constant, torch.Tensor) and constant.dtype != torch.bool:
            left_out = constant <= LEAST
            real = constant.to(torch.float64).masked_fill(left_out, 0)
            added = real.numpy() if bool(real.any()) else None
            found = self._values.of_constant(node, ~left_out)
        else:
            found = self._function(node, argument)
        if found is not None and found.results.dtype != torch.bool:
            parts = self._values.split(found.ranked(rank))
            if parts is None:
                raise self._at.refused(node, "`attn_mask` must add 0 or -inf, or a constant, to what counts")
            added, found = parts
        assert found is not None, "truth values are two at most"
        if added is not None:
            biased = f"{node.name}.biased"
            other = self._at.constant(node, torch.tensor(added), rank=rank)
            self._at.shapes[biased] = self._at.shapes[scores]
            scores = self._at.add(FloatSum, node, [scores, other], name=biased, factors=(1.0, 1.0))
        return scores, *self._counted(node, found.ranked(rank), None)

    def _note(self, name: str, made: WholeFunction | _Scores) -> None:
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
        if name in ("cat", "concat"):
            return self._joined(node, tensors)
        if name == "gather":
            return self._gathered(node)
        if first is None or len(tensors) > 1:
            return None
        if name == "cumsum":
            return self._summed(node, first)
        if name in _RESHAPES:
            return first.reshaped(self._at.shape(node))
        if name == "expand":
            return first.expanded(self._at.shape(node))
        if name in _PERMUTES:
            return first.permuted(permutation(node, len(first.axes)))
        if name in ("slice", "select"):
            return self._cut(node, first, whole=name == "slice")
        return None

    def _is_computed(self, node: fx.Node) -> bool:
        """Whether whole numbers are no longer those of an input, as they are or moved."""
        found = self._functions.get(node.name)
        if found is None:
            return False
        as_they_are = torch.arange(len(found.results)) if found.results.ndim == 1 else None
        same = as_they_are is not None and torch.equal(found.results.to(torch.int64), as_they_are)
        return not (same and self._values.is_moved(found.arguments[0].value))

    def _is_known(self, node: fx.Node) -> bool:
        return node.name in self._functions or self._at.is_constant(node)

    def _function(self, node: fx.Node, argument: Any) -> WholeFunction | None:
        """An argument as a function; None for a constant of too many different numbers."""
        if isinstance(argument, fx.Node) and argument.name in self._functions:
            return self._functions[argument.name]
        found = self._at.operand(node, argument)
        assert not isinstance(found, str)
        return self._values.of_constant(node, found)

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
            target: Any = getattr(torch.ops.aten, called(node)) if is_in_place(node) else node.target
            return target(*own[0], **own[1]).to(kind)

        found = computed(compute, known)
        if called(node) in _SHAPED:
            return found
        found = self._bounded(known, found)
        return None if found is None else self._possible(found)

    def _possible(self, function: WholeFunction) -> WholeFunction:
        """A function without results of what cannot be: a sum up to a place that is less than the number there."""
        for at, each in enumerate(function.arguments):
            term = self._sums.get(each.value)
            if term is None:
                continue
            for own, other in enumerate(function.arguments):
                if other.value != term.arguments[0].value or other.axes != each.axes:
                    continue
                shape = [1] * len(function.arguments)
                shape[at] = each.count
                sums = torch.arange(each.count).reshape(shape)
                shape[at], shape[own] = 1, other.count
                possible = (sums >= term.results.to(torch.int64).reshape(shape)).broadcast_to(function.results.shape)
                some = function.results[possible][0]
                function = replace(function, results=torch.where(possible, function.results, some))
        return function

    def _summed(self, node: fx.Node, function: WholeFunction) -> WholeFunction:
        """Sums of a function up to each place of an axis, as a value of them."""
        axis, kind = int(arguments(node)["dim"]) % len(function.axes), node.meta["val"].dtype
        table, size = _whole(function.results), function.shape[axis]
        if size < 0 or table is None:
            raise self._at.refused(
                node, "a running sum must be of whole numbers from 0 on, along another axis than the batch; "
                "make it in the loader",
            )  # fmt: skip
        if size == 1:
            return replace(function, results=function.results.to(kind))
        count = int(table.max()) * size + 1
        if count > 1 << _MOST_BITS:
            raise self._at.refused(
                node, f"a running sum must be at most {(1 << _MOST_BITS) - 1:,}, and may be {count - 1:,}; "
                "make it in the loader",
            )  # fmt: skip
        source = self._values.full(node, function, table)
        name = self._values.summed(node, source, axis, count)
        own = tuple(group[0] if group else None for group in function.axes)
        if [each.axes for each in function.arguments] == [own]:
            self._sums[name] = function
        return of_value(name, self._at.shapes[name], count, torch.arange(count).to(kind))

    def _gathered(self, node: fx.Node) -> WholeFunction | None:
        """Numbers of a constant by a function, where the constant is the same along all other axes."""
        given = arguments(node)
        index = self._functions.get(given["index"].name)
        if index is None or not self._at.is_constant(given["self"]):
            return None
        table = self._at.operand(node, given["self"])
        assert not isinstance(table, str)
        rows = table.movedim(int(given["dim"]), -1).flatten(0, -2)
        if not bool((rows == rows[:1]).all()):
            return None
        self.check_rows(node, given["index"], rows.shape[-1])
        operands = [index]
        return self._bounded(operands, computed(lambda each: rows[0][each[0].to(torch.int64)], operands))

    def _bounded(self, operands: Sequence[WholeFunction], found: WholeFunction | None) -> WholeFunction | None:
        """A result of functions; what it does not depend on is noted, as larger numbers might change it."""
        if found is not None:
            kept = {each.value for each in found.arguments}
            read = [each.value for one in operands for each in one.arguments]
            self._folded |= dict.fromkeys(value for value in read if value not in kept)
        return found

    def _narrowed(self, node: fx.Node, found: WholeFunction) -> WholeFunction:
        """A function of one value of many numbers that has two results, as one of a value of two."""
        if len(found.arguments) != 1 or found.arguments[0].count == 2:
            return found
        numbers, where = torch.unique(found.results, return_inverse=True)
        if len(numbers) > 2:
            return found
        if int(where[0]) == 1:  # what is equal and what is not are of one value
            numbers, where = numbers.flip(0), 1 - where
        argument = self._values.looked_up(node, found.arguments[0], where.numpy())
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
            self._values.sliced(node, each, group[0], made, (start, stop, step))
            if group and group[0] in each.axes
            else each
            for each in function.arguments
        )
        axes = (*function.axes[:axis], *((made,) if whole else ()), *function.axes[axis + 1 :])
        return replace(function, axes=axes, arguments=own)

    def _joined(self, node: fx.Node, tensors: Sequence[fx.Node]) -> WholeFunction | None:
        """Parts that are all truth values, or 0 and 1, one after another, as a value of them."""
        axis = int(arguments(node)["dim"]) % len(self._at.shape(node))
        if self._at.shape(node)[axis] < 0 or not all(self._is_known(each) for each in tensors):
            return None
        names: list[str] = []
        for each in tensors:
            found = self._function(node, each)
            table = None if found is None else _whole(found.results)
            if found is None or table is None or table.max() > 1:
                return None
            names.append(self._values.full(node, found, table))
        name = self._values.add(node, FloatConcat, names, self._at.shape(node), 2, axis=axis)
        numbers = torch.arange(2).to(node.meta["val"].dtype)
        return of_value(name, self._at.shape(node), 2, numbers)

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
                self._values.sliced(node, one, group[0], made, (start, stop, 1))
                if group and group[0] in one.axes
                else one
                for one in own
            )
            axes[axis] = made
        return replace(function, axes=tuple(axes), arguments=own)

    def _masked(self, node: fx.Node, name: str) -> _Scores | str | None:
        """A node that leaves some of its scores out, or makes some of its numbers 0, a value; None for another one."""
        first = node.args[0] if node.args else None
        if name in _SAME and isinstance(first, fx.Node) and first.name in self._scores:
            drops = name == "dropout" and arguments(node)["train"]
            return self._scores[first.name] if node.meta["val"].is_floating_point() and not drops else None
        if name in _RESHAPES and isinstance(first, fx.Node) and first.name in self._scores:
            return self._reshaped(node, self._scores[first.name])
        if name not in ("add", "sub", "mul", "masked_fill", "where"):
            return None
        given = arguments(node)
        if name == "mul":
            return self._multiplied(node, given["self"], given["other"])
        if name in ("add", "sub"):
            return self._added(node, given, -1 if name == "sub" else 1)
        if name == "masked_fill":
            return self._filled(node, given["self"], given["mask"], given["value"], kept=False)
        if self._is_real(given["self"]):
            return self._filled(node, given["self"], given["condition"], given["other"], kept=True)
        return self._filled(node, given["other"], given["condition"], given["self"], kept=False)

    def _reshaped(self, node: fx.Node, scores: _Scores) -> _Scores | None:
        """Scores and what counts of them under another shape."""
        counts = scores.counts.expanded(self._at.shapes[scores.value])
        counts = None if counts is None else counts.reshaped(self._at.shape(node))
        if counts is None:
            return None
        shape = self._at.shape(node)
        return _Scores(self._values.add(node, FloatReshape, (scores.value,), shape, 0, shape=shape), counts)

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

    def _multiplied(self, node: fx.Node, first: Any, second: Any) -> None:
        """Refuses what makes a mask of real numbers: its range would hold nothing else."""
        for one, other in ((first, second), (second, first)):
            if isinstance(one, fx.Node) and self._is_real(one) and not self._is_real(other):
                if isinstance(other, fx.Node) and other.name in self._functions:
                    continue
                factor = self._at.operand(node, other)
                if not isinstance(factor, str) and factor.numel() == 1 and float(factor) <= LEAST:
                    raise self._at.refused(
                        node, f"a mask must be made of truth values or whole numbers, got real ones; {MASKS}"
                    )

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
                factor = self._values.written(
                    node, counts.ranked(len(self._at.shape(node))), counts.results.long().numpy()
                )
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
            operands = [before.counts, counts]
            both = self._bounded(operands, computed(lambda each: torch.logical_and(*each), operands))
            if both is None:
                raise self._at.refused(node, f"masks must have axes that fit each other; {MASKS}")
            counts = both
        return _Scores(value, counts)

    def _counted(
        self, node: fx.Node, counts: WholeFunction, order: Sequence[int] | None
    ) -> tuple[str | None, NDArray[Any] | None]:  # fmt: skip
        """A function of truth values as a value, or as a constant; neither where all counts."""
        if bool(counts.results.all()):
            self._bounded([counts], replace(counts, arguments=()))
            return None, None
        if order is not None:
            counts = counts.permuted(order)
        if self._values.is_fixed(counts):
            return None, self._values.constant(counts)
        return self._values.written(node, counts, counts.results.long().numpy()), None


def permutation(node: fx.Node, rank: int) -> tuple[int, ...]:
    """The order of axes that a node puts a tensor into."""
    given = arguments(node)
    if "dims" in given:
        return tuple(int(axis) % rank for axis in given["dims"])
    order = list(range(rank))
    first, second = (int(given.get(name, default)) % rank for name, default in (("dim0", 0), ("dim1", 1)))
    order[first], order[second] = order[second], order[first]
    return tuple(order)


def _whole(results: torch.Tensor) -> NDArray[Any] | None:
    """Results as whole numbers from 0 on; None where they are others."""
    numbers = results.to(torch.float64).numpy()
    if not np.isfinite(numbers).all() or (numbers != np.floor(numbers)).any():
        return None
    return numbers.astype(np.int64) if 0 <= numbers.min() <= numbers.max() < 1 << _MOST_BITS else None

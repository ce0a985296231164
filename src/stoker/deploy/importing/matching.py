# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Reads a captured graph as operations on real numbers, before any decomposition, constants folded.

What belongs to which operation of torch is in ``handlers``; here are walking, folding, sizes and names.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx

from stoker.core.errors import ModelImportError
from stoker.deploy.floating.operations import (
    FloatConstant,
    FloatGraph,
    FloatInput,
    FloatOperation,
    FloatPointwise,
    FloatSlice,
    GivenGrid,
)
from stoker.deploy.importing.advice import DROPOUTS, MASKS, NEXT, OTHERWISE, drawn_rule
from stoker.deploy.importing.exporting import Captured, is_in_place, layer, where

Operand = str | torch.Tensor
"""The name of a computed value, or a constant."""
_SIZES = (2, 3)
"""Sizes of the batch at which what depends on that size alone is computed."""
_ROW_NUMBERS = frozenset(
    (
        "add", "sub", "cat", "concat", "view", "reshape", "_unsafe_view", "flatten", "unflatten", "unsqueeze",
        "squeeze", "expand", "permute", "transpose", "t", "slice", "select", "to", "_to_copy", "type_as", "clone",
        "contiguous", "detach", "alias",
    )
)  # fmt: skip
"""What is done to row numbers of an input on their way to a table."""
_Made = TypeVar("_Made", bound=FloatOperation)
Handler = Callable[["Matcher", fx.Node], None]


def arguments(node: fx.Node) -> dict[str, Any]:
    """A node's arguments by the names of the operation's schema, defaults included."""
    schema: Any = node.target._schema  # pyright: ignore[reportAttributeAccessIssue, reportFunctionMemberAccess]
    found: dict[str, Any] = {}
    for at, each in enumerate(schema.arguments):
        if at < len(node.args):
            found[each.name] = node.args[at]
        elif each.name in node.kwargs:
            found[each.name] = node.kwargs[each.name]
        elif each.has_default_value():
            found[each.name] = each.default_value
    return found


class MaskRules(Protocol):
    """What knows masks that depend on inputs: :class:`stoker.deploy.importing.masks.Masks`."""

    @property
    def folded(self) -> tuple[str, ...]:
        """Values that masks were made of and do not depend on, for the numbers that these can hold."""
        ...

    def enter(self, node: fx.Node, count: int) -> None:
        """Notes an input of whole numbers."""
        ...

    def take(self, node: fx.Node) -> bool:
        """Whether a node is a mask or masks scores."""
        ...

    def forget(self, node: fx.Node) -> None:
        """A node is another value from now on."""
        ...

    def value(self, node: fx.Node, argument: fx.Node) -> str | None:
        """The value of a mask that something else than a softmax reads."""
        ...

    def check_rows(self, node: fx.Node, argument: fx.Node, count: int) -> None:
        """Refuses row numbers that are computed and may be past a table of so many rows."""
        ...

    def rows(
        self, node: fx.Node, argument: Any, order: Sequence[int] | None = None
    ) -> tuple[str, str | None, NDArray[Any] | None]:  # fmt: skip
        """What a softmax reads."""
        ...

    def counts(
        self, node: fx.Node, argument: Any, scores: str
    ) -> tuple[str, str | None, NDArray[Any] | None]:  # fmt: skip
        """What an attention counts, and its scores."""
        ...


class Matcher:
    """A captured graph being read.

    Args:
        captured: the graph.
        handlers: what to do about operations, by name.
        masks: what knows masks.
        largest: number that samples have of each input of whole numbers that no table is read by; 1 by default.

    Attributes:
        masks: of this graph.
        operations: made so far.
        shapes: of every value, with the batch, multiples of it negative.
        grids: that the graph itself states, by value.
        narrow: what a value was expanded from, whose axes of size 1 sums and products broadcast.
    """

    def __init__(
        self, captured: Captured, handlers: dict[str, Handler], masks: Callable[[Matcher], MaskRules],
        largest: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        self.operations: list[FloatOperation] = []
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.grids: dict[str, GivenGrid] = {}
        self.narrow: dict[str, str] = {}
        self.masks = masks(self)
        self._captured = captured
        self._handlers = handlers
        self._largest = largest or {}
        self._constants: dict[str, Any] = {}
        """Tensors and numbers that no input reaches, by node."""
        self._by_size: dict[str, tuple[Any, Any]] = {}
        """Sizes, and what only the batch's size and constants reach, at two sizes; masks of all samples are such."""
        self._names: dict[str, str] = {}
        """What a node's result is called; views of nothing and in-place operations share names."""
        self._parts: dict[str, list[str]] = {}
        """Names of the parts of a node with several results."""
        self._batch: Any = None

    def graph(self) -> FloatGraph:
        """All of it.

        Raises:
            ModelImportError: an operation, a size or a weight is not supported; fields: where.
        """
        nodes = list(self._captured.graph_module.graph.nodes)
        by_name = {node.name: node for node in nodes}
        needed = _needed([by_name[name] for name in self._captured.outputs if name in by_name], nodes)
        self._constants = dict(self._captured.unwritten().tensors)
        inputs = [self._input(by_name[name]) for name in self._captured.inputs]
        for node in nodes:
            if node.op != "call_function" or node.name not in needed:
                continue
            if not self._folded(node) and not self.masks.take(node):
                self._match(node)
        outputs: dict[str, str] = {}
        for name, called in zip(self._captured.outputs, self._captured.names, strict=True):
            value = self._names.get(name) or (name in by_name and self.masks.value(by_name[name], by_name[name]))
            if not value:
                raise ModelImportError(f"`{called}` must depend on an input of the model, got a constant", where="")
            outputs[called] = value
        return FloatGraph(
            inputs=tuple(inputs), outputs=outputs, operations=tuple(self.operations), shapes=dict(self.shapes),
            grids=dict(self.grids), folded=self.masks.folded,
        )  # fmt: skip

    def add(
        self, make: Callable[..., _Made], node: fx.Node, sources: Sequence[str], name: str = "", **given: Any
    ) -> str:
        """Puts an operation down for a node; returns its name."""
        called = name or node.name
        self.operations.append(make(name=called, sources=tuple(sources), layer=layer(node), where=where(node), **given))
        if not name:
            self._names[node.name] = called
            self.shapes[called] = self.shape(node)
        return called

    def alias(self, node: fx.Node, name: str) -> None:
        """A node's result is a value that exists."""
        self._names[node.name] = name

    def on_grid(self, node: fx.Node, name: str, grid: GivenGrid) -> None:
        """A node's result is a value on a grid; one that has another grid already is rewritten on this one."""
        if self.grids.setdefault(name, grid) == grid:
            self.alias(node, name)
        else:
            self.add(FloatPointwise, node, [name], function="clamp", arguments=(-np.inf, np.inf))
            self.grids[node.name] = grid

    def replace(self, node: fx.Node) -> None:
        """What an in-place operation wrote to is its result from now on.

        Raises:
            ModelImportError: it wrote to a part of a value.
        """
        made = self._names[node.name]
        for each in self.overwritten(node):
            self._names[each.name] = made

    def overwritten(self, node: fx.Node) -> list[fx.Node]:
        """What an in-place operation writes to is not what it was any more; all nodes that are that value.

        Raises:
            ModelImportError: what has a part of that memory otherwise is read later.
        """
        written = node.args[0]
        assert isinstance(written, fx.Node)
        same = _same_value(written)
        places = {each: at for at, each in enumerate(node.graph.nodes)}
        for each in _of_memory(written):
            if each not in same and places[each] < places[node] < max(map(places.__getitem__, each.users), default=-1):
                raise self.refused(
                    node, f"must not write to `{written.name}`: `{each.name}`, a part or a view of the same memory, is "
                    "read later; use the form that is not in place"
                )  # fmt: skip
        for each in same:
            self.masks.forget(each)
            for known in (self._names, self._constants, self._by_size):
                known.pop(each.name, None)
        return same

    def split(self, node: fx.Node, axis: int, sizes: Sequence[int]) -> None:
        """Parts of a node's source along an axis, for a node with several results."""
        source = self.value(node, node.args[0])
        whole = self.shapes[source]
        start = 0
        names: list[str] = []
        for at, size in enumerate(sizes):
            name = f"{node.name}.{at}"
            self.add(FloatSlice, node, [source], name=name, axis=axis, start=start, stop=start + size)
            self.shapes[name] = (*whole[:axis], size, *whole[axis + 1 :])
            names.append(name)
            start += size
        self._parts[node.name] = names

    def part(self, node: fx.Node) -> None:
        """``getitem``: one of several results."""
        source, at = node.args
        assert isinstance(source, fx.Node)
        if source.name in self._parts:
            self._names[node.name] = self._parts[source.name][int(at)]  # pyright: ignore[reportArgumentType]
        elif int(at) == 0 and source.name in self._names:  # pyright: ignore[reportArgumentType]
            self._names[node.name] = self._names[source.name]
        else:
            raise self.refused(node, f"result {at} of `{source.target}` must not be used")

    def operand(self, node: fx.Node, argument: Any) -> Operand:
        """An argument as a computed value or a constant."""
        if isinstance(argument, fx.Node):
            given = argument.op == "placeholder" and argument.name in self._names
            masked = None if given else self.masks.value(node, argument)
            if masked is not None:
                return masked
            if argument.name in self._names:
                return self._names[argument.name]
            if argument.name in self._constants:
                return torch.as_tensor(self._constants[argument.name])
            if argument.name in self._by_size:
                return self._per_sample(node, argument.name)
            raise self.refused(node, f"`{argument.name}` must be computed from the model's inputs or constant")
        if isinstance(argument, (int, float)):
            return torch.tensor(float(argument), dtype=torch.float64)
        raise self.refused(node, f"an argument must be a tensor or a number, got {argument!r}")

    def value(self, node: fx.Node, argument: Any) -> str:
        """An argument as a computed value; a constant becomes one that is the same for each sample."""
        found = self.operand(node, argument)
        return found if isinstance(found, str) else self.constant(node, found, argument)

    def constant(self, node: fx.Node, tensor: torch.Tensor, argument: Any = None, rank: int = 0) -> str:
        """A constant as a value; axes of size 1 are put before its own up to a rank."""
        array = self.numbers(node, tensor)
        array = array.reshape((1,) * (rank - array.ndim) + array.shape)
        name = f"{node.name}.constant{len(self.operations)}"
        self.add(FloatConstant, node, (), name=name, array=array)
        self.shapes[name] = array.shape
        return name

    def weight(self, node: fx.Node, argument: Any, what: str) -> Any:
        """An argument that must be constant, as numbers.

        Raises:
            ModelImportError: it depends on an input, or is not finite.
        """
        found = self.operand(node, argument)
        if isinstance(found, str):
            raise self.refused(node, f"`{what}` must be constant, and depends on an input")
        return self.numbers(node, found, what)

    def numbers(self, node: fx.Node, tensor: torch.Tensor, what: str = "a constant") -> Any:
        """A constant in double precision."""
        array = np.array(tensor.detach().to(torch.float64).tolist(), dtype=np.float64).reshape(tuple(tensor.shape))
        if not np.isfinite(array).all():
            raise self.refused(node, f"`{what}` must be finite, got {array[~np.isfinite(array)].ravel()[0]}")
        return array

    def shape(self, node: fx.Node) -> tuple[int, ...]:
        """The shape of a node's result; multiples of the batch are negative.

        Raises:
            ModelImportError: two axes are the batch's: samples would meet.
        """
        found = node.meta["val"]
        tensor = found[0] if isinstance(found, (tuple, list)) else found
        shape = tuple(self.size(node, each) for each in tensor.shape)
        if sum(size < 0 for size in shape) > 1:
            raise self.refused(
                node, f"samples must not be combined with each other, got a result of {list(shape)} (-1: the batch); "
                "do that outside of the module"
            )  # fmt: skip
        return shape

    def size(self, node: fx.Node, size: Any) -> int:
        """A size of torch; a multiple of the batch is negative."""
        if isinstance(size, fx.Node):
            size = size.meta["val"] if "val" in size.meta else self._constants[size.name]
        if isinstance(size, int):
            return size
        share = size.node.expr / self._batch
        if not share.is_Integer:
            raise self.refused(node, f"a size must be constant or a multiple of the batch, got {size}")
        return -int(share)

    def sizes(self, node: fx.Node, given: Any) -> tuple[int, ...]:
        """Sizes that may be nodes."""
        return tuple(self.size(node, each) for each in given)

    def is_constant(self, node: Any) -> bool:
        """Whether an argument does not depend on an input."""
        return not isinstance(node, fx.Node) or node.name in self._constants or node.name in self._by_size

    def range_of(self, node: Any, rank: int) -> tuple[int, int, int] | None:
        """An axis, of so many, along which a constant counts up one by one, from which number and up to before which.

        All samples of the batch are counted from 0 up to before -1. None: it does not count.
        """
        if not isinstance(node, fx.Node) or not self.is_constant(node):
            return None
        tensors = [torch.as_tensor(each) for each in self._by_size.get(node.name, (self._constants.get(node.name),))]
        axes = [[axis for axis, size in enumerate(each.shape, rank - each.ndim) if size > 1] for each in tensors]
        if any(len(each) != 1 for each in axes) or len({each[0] for each in axes}) > 1:
            return None
        flat = [each.flatten() for each in tensors]
        start = int(flat[0][0])
        if any(not torch.equal(each, torch.arange(start, start + len(each))) for each in flat):
            return None
        by_batch = len(flat) > 1 and tuple(map(len, flat)) == _SIZES
        if by_batch:
            return (axes[0][0], 0, -1) if start == 0 else None
        return axes[0][0], start, start + len(flat[0])

    def refused(self, node: fx.Node, rule: str) -> ModelImportError:
        """The error that says so, with the user's file and line."""
        place = where(node)
        inside = f" in `{layer(node)}`" if layer(node) else ""
        at = f"{place}: " if place else ""
        return ModelImportError(f"{at}`{node.target}`{inside}: {rule}", where=place, operation=str(node.target))

    def _input(self, node: fx.Node) -> FloatInput:
        tensor = node.meta["val"]
        if self._batch is None:
            first = tensor.shape[0] if tensor.ndim else 0
            if isinstance(first, int):
                raise self.refused(
                    node, f"input `{node.name}` must have a batch of any size as first axis, got {first}"
                )
            self._batch = first.node.expr
        self._names[node.name] = node.name
        self.shapes[node.name] = self.shape(node)
        if tensor.dtype.is_floating_point:
            return FloatInput(name=node.name, shape=self.shapes[node.name], whole=False)
        truth = tensor.dtype == torch.bool
        count = 2 if truth else max(_rows_of(node), self._largest.get(node.name, 1) + 1, 2)
        self.masks.enter(node, count)
        return FloatInput(name=node.name, shape=self.shapes[node.name], whole=True, truth=truth, count=count)

    def _folded(self, node: fx.Node) -> bool:
        """Computes a node that no input reaches, or only the batch's size; whether it was one."""
        value, inputs = node.meta.get("val"), node.all_input_nodes
        if isinstance(value, torch.SymInt):
            if value.node.expr.free_symbols <= {self._batch}:
                small, large = (int(value.node.expr.subs(self._batch, size)) for size in _SIZES)
                self._by_size[node.name] = small, large
            return True  # sizes are read where they are used
        if called(node):
            seeded = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
            rule = drawn_rule(called(node), arguments(node), seeded=seeded)
            if rule:
                raise self.refused(node, rule)
        if all(each.name in self._constants for each in inputs):
            self._constants[node.name] = _computed(node, self._constants)
            return True
        if all(each.name in self._constants or each.name in self._by_size for each in inputs):
            if is_in_place(node) and inputs[0].name in self._constants:  # it would be written to once for each size
                raise self.refused(
                    node, f"must not write what depends on the size of the batch to a constant, `{inputs[0].name}`; "
                    "use the form that is not in place"
                )  # fmt: skip
            small, large = (
                _computed(node, self._constants | {name: each[at] for name, each in self._by_size.items()})
                for at in range(len(_SIZES))
            )
            self._by_size[node.name] = small, large
            return True
        return False

    def _per_sample(self, node: fx.Node, name: str) -> torch.Tensor:
        """What only the batch's size reaches, as a constant whose axis of the batch has size 1.

        Raises:
            ModelImportError: it is not the same for each sample and each size.
        """
        small, large = (torch.as_tensor(each) for each in self._by_size[name])
        if small.ndim == large.ndim:
            for axis in (axis for axis in range(small.ndim) if small.shape[axis] != large.shape[axis]):
                small, large = (
                    each.narrow(axis, 0, 1) if _is_same_along(each, axis) else each for each in (small, large)
                )
        if not torch.equal(small, large):
            raise self.refused(node, f"`{name}` must be the same for each sample, and depends on the size of the batch")
        return small

    def _match(self, node: fx.Node) -> None:
        if isinstance(node.meta.get("val"), int):
            return  # sizes are read where they are used
        if all(isinstance(each.meta.get("val"), (torch.SymInt, int)) for each in node.all_input_nodes):
            return  # made of sizes alone; what it is used for reads or refuses it
        target = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
        name = str(node.target) if str(node.target).startswith("aten.") else target
        handler = self._handlers.get(name.removesuffix(".default").removeprefix("aten."))
        if handler is None and getattr(node.meta.get("val"), "dtype", None) == torch.bool:
            tensors = (each.meta.get("val") for each in node.all_input_nodes)
            real = any(isinstance(each, torch.Tensor) and each.dtype.is_floating_point for each in tensors)
            source = (
                "real numbers; give the mask as an input of truth values, made in the loader" if real else "an input"
            )
            raise self.refused(node, f"truth values must be constant, and depend on {source}; {MASKS}")
        if handler is None:
            base = name.removeprefix("aten.").partition(".")[0]
            raise self.refused(node, f"is not among the operations that become integers; {NEXT.get(base, OTHERWISE)}")
        handler(self, node)


def called(node: fx.Node) -> str:
    """The name of an operation of torch without its overload, or the sign that it works in place."""
    parts = str(node.target).split(".")
    if len(parts) < 2 or parts[0] != "aten":
        return ""
    return parts[1].removesuffix("_") if is_in_place(node) else parts[1]


def is_row_numbers(node: fx.Node) -> bool:
    """Whether a node moves or shifts row numbers, and only tables read them, perhaps after more of that."""
    if not leads_on(node) or not node.users:
        return False
    return all(_is_lookup(source, user) or leads_on(user) for source, user in _uses(node))


def _rows_of(node: fx.Node) -> int:
    """Rows of the largest table whose rows an input says, perhaps joined, with an offset, in part; 0 without one."""
    tables = (arguments(user)["weight"] for source, user in _uses(node) if _is_lookup(source, user))
    return max((int(each.meta["val"].shape[0]) for each in tables), default=0)


def _uses(node: fx.Node) -> Iterator[tuple[fx.Node, fx.Node]]:
    """What reads a node, each with what it reads, and what reads it after that, up to what is no row number."""
    waiting, seen = [node], {node}
    while waiting:
        source = waiting.pop()
        for user in source.users:
            yield source, user
            if leads_on(user) and user not in seen:
                seen.add(user)
                waiting.append(user)


def leads_on(node: fx.Node) -> bool:
    """Whether a node's results may be row numbers of an input if what it reads are."""
    kind = getattr(node.meta.get("val"), "dtype", None)
    if called(node) not in _ROW_NUMBERS or kind is None or kind.is_floating_point or kind == torch.bool:
        return False
    # A sum of two numbers of a sample is a row number of neither.
    return called(node) not in ("add", "sub") or sum(_is_of_samples(each) for each in node.all_input_nodes) < 2


def _is_lookup(source: fx.Node, user: fx.Node) -> bool:
    """Whether a node reads rows of a table by the numbers of another one."""
    return called(user) in ("embedding", "embedding_bag") and arguments(user)["indices"] is source


def _is_of_samples(node: fx.Node) -> bool:
    """Whether a tensor is made of an input's numbers, not of sizes alone; of placeholders, inputs have a batch."""
    waiting, seen = [node], {node}
    while waiting:
        each = waiting.pop()
        value = each.meta.get("val")
        if not isinstance(value, torch.Tensor):
            continue
        if each.op == "placeholder" and any(isinstance(size, torch.SymInt) for size in value.shape):
            return True
        waiting += [before for before in each.all_input_nodes if before not in seen]
        seen.update(each.all_input_nodes)
    return False


def _computed(node: fx.Node, known: Mapping[str, Any]) -> Any:
    """What a node computes of values of the nodes that it reads."""
    arguments = fx.map_arg((node.args, node.kwargs), lambda each: known[each.name])
    with torch.no_grad():
        assert callable(node.target)
        return node.target(*arguments[0], **arguments[1])


def _is_same_along(tensor: torch.Tensor, axis: int) -> bool:
    return bool((tensor == tensor.narrow(axis, 0, 1)).all())


def _needed(outputs: Sequence[fx.Node], nodes: Sequence[fx.Node]) -> set[str]:
    """Nodes that results depend on, those included that write to what these read."""
    found = _reached(outputs, set())
    while True:
        before = len(found)
        for node in nodes:
            if node.name not in found and is_in_place(node) and not found.isdisjoint(_written(node)):
                found = _reached([node], found)
        if len(found) == before:
            return found


def _reached(outputs: Sequence[fx.Node], known: set[str]) -> set[str]:
    """Nodes that some depend on, and those known."""
    found, waiting = set(known), list(outputs)
    while waiting:
        node = waiting.pop()
        if node.name not in found:
            found.add(node.name)
            waiting += node.all_input_nodes
    return found


def _is_view(node: fx.Node) -> bool:
    """Whether a node's result is memory of what it reads, or a list of such, without being the same value."""
    if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
        return _is_view(node.args[0])  # one part of several has no schema
    source = node.args[0] if called(node) == "to" else None
    if isinstance(source, fx.Node) and node.meta["val"].dtype != source.meta["val"].dtype:
        return False  # a copy, whose schema says that it may be none
    schema: Any = getattr(node.target, "_schema", None)
    return schema is not None and not schema.is_mutable and any(each.alias_info for each in schema.returns)


def _same_value(node: fx.Node) -> list[fx.Node]:
    """Nodes that are one value: what is written in place, and dropouts that are off, which torch's schema hides."""
    while _is_itself(node) and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    found = [node]
    for each in found:
        found += [user for user in each.users if user.args[:1] == (each,) and _is_itself(user)]
    return found


def _of_memory(node: fx.Node) -> list[fx.Node]:
    """Nodes whose results are memory of the value that a node is, or is a part or a view of."""
    above = [node]
    while (_is_itself(node) or _is_view(node)) and isinstance(node.args[0], fx.Node):
        node = node.args[0]
        above.append(node)
    # Parts of a value, not of a view that may hold memory twice, have no memory in common.
    own = above[-3] if len(above) > 2 and above[-3].target is operator.getitem else None
    found = [node]
    for each in found:
        users = [user for user in each.users if user.args[:1] == (each,) and (_is_itself(user) or _is_view(user))]
        found += [user for user in users if own is None or own.args[0] is not each or user.args[1] == own.args[1]]
    return found


def _is_itself(node: fx.Node) -> bool:
    """Whether a node returns what it reads: written to, or as it is."""
    return is_in_place(node) or called(node) in DROPOUTS


def _written(node: fx.Node) -> list[str]:
    """What an in-place node writes to, and what that is a view of."""
    found: list[str] = []
    first: Any = node.args[0] if node.args else None
    while isinstance(first, fx.Node):
        found.append(first.name)
        first = first.args[0] if first.args and (_is_view(first) or _is_itself(first)) else None
    return found

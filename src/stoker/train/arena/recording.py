"""One run of a graph, call by call as `aot_eager` makes them, that sees where each result lies and how long it lives.

What is seen and not what is declared decides: the layouts that kernels gave, and which results share memory. Each call
that could write into given memory is made a second time into a scratch tensor; only one that gives the same bits is
planned. So the recorded run takes up to twice the time, and the largest result more memory.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

import stoker.train.arena.torch_private as private
from stoker.train.arena.variants import WritingCall, writer_of

LEAST_BYTES = 512
"""Smaller results stay outside: each place in the arena takes that much."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A tensor that a call returned, as a place in a buffer.

    Attributes:
        buffer: number among the recording's; -1: without memory.
        offset: elements from the buffer's start.
    """

    buffer: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass(slots=True)
class Buffer:
    """A piece of memory that a graph's values lie in.

    Attributes:
        nbytes: of the whole piece.
        birth: number of the call that made it; -1 for what was passed in.
        death: number of the last call that uses it, and one.
        maker: operator that made it.
        outside: why it can't lie in an arena; empty if it can.
        users: values that are alive and lie in it.
    """

    nbytes: int
    birth: int
    death: int
    maker: str
    outside: str = ""
    users: int = 0


@dataclass(slots=True)
class GraphRecording:
    """What one run of a graph showed.

    Attributes:
        nodes: the graph's, in order; calls are numbered by it.
        leaves: tensors of each value that has some, by name.
        buffers: in order of birth; those passed in first.
        returned: names of the values that are returned; None: something else.
        finished: whether the run was seen to its end.
    """

    nodes: list[Node]
    leaves: dict[str, Any] = field(default_factory=dict[str, Any])
    buffers: list[Buffer] = field(default_factory=list[Buffer])
    returned: list[str | None] = field(default_factory=list["str | None"])
    finished: bool = False

    @property
    def passed_in(self) -> set[int]:
        """Buffers that the graph was called with."""
        return {number for number, each in enumerate(self.buffers) if each.birth < 0}

    def buffers_of(self, name: str | None) -> set[int]:
        """Buffers that a value lies in."""
        return {leaf.buffer for leaf in leaves_in(self.leaves.get(name or "")) if leaf.buffer >= 0}

    def returns(self, start: int, stop: int | None = None) -> set[int]:
        """Buffers that lie in some of the returned values."""
        return {number for name in self.returned[start:stop] for number in self.buffers_of(name)}


def leaves_in(tree: Any) -> Iterator[Leaf]:
    """All leaves of a value's tree."""
    if isinstance(tree, Leaf):
        yield tree
    elif isinstance(tree, tuple):
        for each in cast("tuple[Any, ...]", tree):
            yield from leaves_in(each)


def last_uses(nodes: Sequence[Node]) -> list[list[Node]]:
    """By call: values that no later one uses."""
    dying: list[list[Node]] = [[] for _ in nodes]
    seen: set[Node] = set()
    for number in range(len(nodes) - 1, -1, -1):
        for node in (*nodes[number].all_input_nodes, nodes[number]):
            if node not in seen:
                seen.add(node)
                dying[number].append(node)
    return dying


class GraphRecorder:
    """Runs a graph once and records it. For one use.

    Args:
        module: the graph.
    """

    def __init__(self, module: GraphModule) -> None:
        self._module = module
        self._nodes = list(module.graph.nodes)
        self.recording = GraphRecording(self._nodes)
        self._at: dict[int, int] = {}  # buffer by the address of its storage, of those alive
        self._outside: dict[Node, str] = {}
        self._problem: Exception | None = None

    def run(self, args: list[Any]) -> Sequence[Any]:
        """What the graph returns.

        Raises:
            Exception: what a call of the graph raises; looking never does, and leaves the recording unfinished.
        """
        values: dict[Node, Any] = {}
        waiting = iter(args[:])
        args.clear()
        dying = last_uses(self._nodes)
        for number, node in enumerate(self._nodes):
            if node.op == "output":
                found = _filled_in(node.args[0], values)
                self._look(lambda node=node: self._see_output(node))
                return found
            value = next(waiting) if node.op == "placeholder" else self._made(node, values, number)
            values[node] = value
            self._look(lambda node=node, value=value, number=number: self._see(node, value, number))
            del value
            for dead in dying[number]:
                self._look(lambda dead=dead, number=number: self._release(dead, number))
                del values[dead]
        raise RuntimeError("a graph must end with its output")  # pragma: no cover - fx checks it

    @property
    def problem(self) -> Exception | None:
        """What went wrong while looking."""
        return self._problem

    def _look(self, what: Callable[[], None]) -> None:
        if self._problem is None:
            try:
                what()
            except Exception as error:  # an inspection never harms: the graph's results are the program's
                self._problem = error

    def _made(self, node: Node, values: dict[Node, Any], number: int) -> Any:
        if node.op == "get_attr":
            return _attribute(self._module, str(node.target))
        args, kwargs = _filled_in(node.args, values), _filled_in(node.kwargs, values)
        if node.op == "call_module":
            return self._module.get_submodule(str(node.target))(*args, **kwargs)
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **kwargs)
        value = cast("Callable[..., Any]", node.target)(*args, **kwargs)
        self._look(lambda: self._try(node, args, kwargs, value))
        return value

    def _try(self, node: Node, args: Any, kwargs: Any, value: Any) -> None:
        """Whether the call, made into scratch tensors, gives the same bits."""
        self._outside[node] = _why_not(node, args, kwargs, value)

    def _see(self, node: Node, value: Any, number: int) -> None:
        tree = self._tree(node, value, number)
        if any(True for _ in leaves_in(tree)):
            self.recording.leaves[node.name] = tree
            for buffer in self.recording.buffers_of(node.name):
                self.recording.buffers[buffer].users += 1

    def _tree(self, node: Node, value: Any, number: int) -> Any:
        if isinstance(value, (tuple, list)):
            return tuple(self._tree(node, each, number) for each in cast("Sequence[Any]", value))
        if not isinstance(value, Tensor):
            return None
        plain = type(value) in (Tensor, torch.nn.Parameter) and value.layout == torch.strided
        if not plain or not value.untyped_storage().nbytes():
            return Leaf(-1, value.dtype, tuple(value.shape), (), 0)
        storage = value.untyped_storage()
        buffer = self._at.get(storage.data_ptr(), -1)
        if buffer < 0:
            buffer = self._at[storage.data_ptr()] = len(self.recording.buffers)
            passed = node.op in ("placeholder", "get_attr")
            outside = "" if passed else self._outside.get(node, "not an operator")
            if not outside and not passed and not _fills_its_storage(value):
                outside = "its memory is larger than its result"
            made = Buffer(storage.nbytes(), -1 if passed else number, number + 1, str(node.target), outside)
            self.recording.buffers.append(made)
        return Leaf(buffer, value.dtype, tuple(value.shape), value.stride(), int(value.storage_offset()))

    def _release(self, node: Node, number: int) -> None:
        for buffer in self.recording.buffers_of(node.name):
            found = self.recording.buffers[buffer]
            found.users -= 1
            found.death = max(found.death, number + 1)
            if not found.users:
                self._at = {address: each for address, each in self._at.items() if each != buffer}

    def _see_output(self, node: Node) -> None:
        returned = node.args[0]
        values = cast("Sequence[Any]", returned if isinstance(returned, (tuple, list)) else (returned,))
        self.recording.returned = [each.name if isinstance(each, Node) else None for each in values]
        for buffer in self.recording.buffers:
            if buffer.users:
                buffer.death = len(self._nodes)
        self.recording.finished = True


def _filled_in(arguments: Any, values: dict[Node, Any]) -> Any:
    return torch.fx.map_arg(arguments, lambda node: values[node])


def _attribute(module: GraphModule, path: str) -> Any:
    found: Any = module
    for part in path.split("."):
        found = getattr(found, part)
    return found


def _fills_its_storage(value: Tensor) -> bool:
    size = value.numel() * value.element_size()
    return value.storage_offset() == 0 and size == value.untyped_storage().nbytes() and _is_dense(value)


def _is_dense(value: Tensor) -> bool:
    """Whether its elements lie side by side, in whatever order of dimensions."""
    expected = 1
    for stride, size in sorted((stride, size) for size, stride in zip(value.shape, value.stride(), strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def _why_not(node: Node, args: Any, kwargs: Any, value: Any) -> str:
    """Why results can't be written into given memory; empty if they can."""
    if node.target is operator.getitem or not private.is_operator(node.target):
        return "not an operator"
    write = writer_of(node.target)
    if write is None:
        return "no native out variant"
    results = cast("Sequence[Any]", value if isinstance(value, (tuple, list)) else (value,))
    if not all(type(each) is Tensor and each.layout == torch.strided for each in results):
        return "not tensors alone"
    tensors = cast("Sequence[Tensor]", results)
    if any(each.device.type != "cpu" for each in tensors):
        return "not on a CPU"
    if any(each.is_conj() or each.is_neg() for each in tensors):
        return "a lazy tensor"
    if sum(each.numel() * each.element_size() for each in tensors) < LEAST_BYTES:
        return "small"
    if not all(_is_dense(each) for each in tensors):
        return "its elements don't lie side by side"
    scratch = [_scratch(each) for each in tensors]
    try:
        for call in write(args, kwargs, scratch):
            made(call)
    except Exception:  # such as a mixture of types that only the operator itself takes
        return "its out variant refuses these arguments"
    same = all(_bits_equal(one, other) for one, other in zip(tensors, scratch, strict=True))
    return "" if same else "its out variant gives other bits"


def made(call: WritingCall) -> Any:
    """What a call returns, whose arguments are values or calls."""
    return call.function(*(made(each) if isinstance(each, WritingCall) else each for each in call.args), **call.kwargs)


def _scratch(like: Tensor) -> Tensor:
    """A tensor of the same layout, filled with bytes that no kernel writes by chance."""
    found = torch.empty_strided(tuple(like.shape), like.stride(), dtype=like.dtype, device=like.device)
    _bytes_of(found).fill_(0xA5)
    return found


def _bytes_of(value: Tensor) -> Tensor:
    return value.as_strided((value.numel(),), (1,)).view(torch.uint8)


def _bits_equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.stride() == other.stride() and torch.equal(_bytes_of(one), _bytes_of(other))

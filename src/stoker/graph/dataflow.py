"""The dataflow graph of one step's beginning: which calls were made on a batch, and what each depends on.

Plain data without torch, so that what decides (:mod:`stoker.graph.choice.cut`) and what draws can be tested alone.
A graph lists, in program order, every call that touched the batch or something made from it. A node is *stateless*
when it depends on nothing but the batch and proven constants; ``Node.state`` says why another one is not.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

DICT = "dict:"
"""A container that is a dictionary: this, and its keys as JSON."""


class Form(enum.Enum):
    """What an argument of a recorded call is."""

    VALUE = "value"
    """``payload`` is the number of a value of the graph."""
    CONSTANT = "constant"
    """``payload`` is the number of an outside tensor whose bytes were the same in every recorded step."""
    SCALAR = "scalar"
    """``payload`` is a Python value that matches by type and bits."""
    LIST = "list"
    """``payload`` is a tuple of arguments."""
    TUPLE = "tuple"
    """Like ``LIST``."""
    SLICE = "slice"
    """``payload`` is three arguments: start, stop, step."""


class Argument(NamedTuple):  # a tuple like Value: made for every recorded call, while the program waits
    """One argument of a call; a tree where lists, tuples or slices are nested."""

    form: Form
    payload: object

    def leaves(self) -> Iterator[Argument]:
        """The values, constants and scalars of the tree, from left to right."""
        if self.form in (Form.LIST, Form.TUPLE, Form.SLICE):
            parts = self.payload
            assert isinstance(parts, tuple)
            for part in parts:  # pyright: ignore[reportUnknownVariableType]
                assert isinstance(part, Argument)
                yield from part.leaves()
        else:
            yield self


class Value(NamedTuple):
    """A tensor: a leaf of the batch, or a result of a node."""

    number: int
    producer: int | None
    """Number of the node; None for a leaf of the batch."""
    position: int
    """Place among the node's results, or among the batch's leaves."""
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    """The name that torch prints, without ``torch.``."""
    device: str
    size_bytes: int
    """Bytes of its elements."""


@dataclass(slots=True)
class Node:
    """A recorded call."""

    number: int
    """Place in program order."""
    function: str
    """Path of the function (``torch.nn.functional.one_hot``), by which a data worker finds it."""
    arguments: tuple[Argument, ...]
    keywords: tuple[tuple[str, Argument], ...]
    outputs: tuple[int, ...]
    """Numbers of the values it made; empty for a call that is only a use of values."""
    container: str
    """``tensor``, ``tuple`` or ``list``: how the results are returned."""
    is_view: bool
    """Results share memory with an argument: computed in the training process if that argument is there."""
    seconds: float
    """Median over the recorded steps."""
    site: str
    """``file.py:line`` of the call in the program."""
    state: str = ""
    """Why it is not stateless, in words that end a sentence; empty for a stateless node."""
    random: bool = False
    """It draws from a stream of the work item's own (``--random sample``)."""

    @property
    def inputs(self) -> tuple[int, ...]:
        """Values among the arguments, in order, each once."""
        trees = [*self.arguments, *(tree for _, tree in self.keywords)]
        seen: dict[int, None] = {}
        for tree in trees:
            for leaf in tree.leaves():
                if leaf.form is Form.VALUE:
                    assert isinstance(leaf.payload, int)
                    seen[leaf.payload] = None
        return tuple(seen)


@dataclass(slots=True)
class Graph:
    """The recorded graph of one kind of step (a *variant*)."""

    values: list[Value]
    nodes: list[Node]
    kept: dict[int, str] = field(default_factory=dict[int, str])
    """Values that the training process itself needs, in addition to nodes, and why (read into Python, still referenced
    after the last stateless call)."""
    steps: int = 0
    """Number of recorded steps."""
    step_s: float = 0.0
    """Median time from a batch's delivery to the next request."""
    busy_s: float = 0.0
    """Median processor time of all threads in that time; 0 where it is not known."""

    def producer(self, value: int) -> Node | None:
        """The node that made a value; None for a leaf."""
        number = self.values[value].producer
        return None if number is None else self.nodes[number]

    def users(self, value: int) -> list[Node]:
        """Nodes that take a value."""
        return [node for node in self.nodes if value in node.inputs]


@dataclass(frozen=True, slots=True)
class Cut:
    """The part of a graph that data workers run."""

    moved: frozenset[int]
    """Numbers of the nodes, with all that they depend on."""
    boundary: tuple[int, ...]
    """Values that are sent, in order; none of them is a leaf or a view."""
    saved_s: float
    """Predicted seconds that the training process saves in a step."""
    worker_s: float
    """Seconds of data-worker time in a step."""
    boundary_bytes: int
    stayed: dict[int, str]
    """Stateless nodes that were not moved, and why."""

    def __bool__(self) -> bool:
        return bool(self.moved)

# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false
# (torch's functions are untyped)
"""A prepared cut in the training process: each moved call as a cheap comparison, with its deferred tensors."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import torch

from stoker.graph.arguments import Matcher, matcher
from stoker.graph.dataflow import DICT, Argument, Cut, Form, Node
from stoker.graph.functions import find
from stoker.graph.recording.common_graph import Recording
from stoker.graph.recording.deferred import Deferred, Maker
from stoker.graph.recording.recorder import ambient
from stoker.graph.torch_private import devices, is_any_autocast, owners_of, unseen

_NO_BITS = (float, complex, np.generic)
"""Types of which equal values may differ in bits (zeros)."""

# Asked at every call that is verified.
_is_inference, _get_default_dtype = torch.is_inference_mode_enabled, torch.get_default_dtype


class Expected:
    """A moved call, ready to be compared.

    Attributes:
        following: the next moved call; None after the last one.
        output: number of the only result, where it is a tensor by itself that need not be made here; else -1.
        present: the inputs that are tensors in every step; the others are stand-ins, as a rule.
    """

    __slots__ = (
        "_ambient", "_autocast", "_default", "_device", "_keywords", "_num_args", "_others", "_scalars", "_tensors",
        "container", "following", "function", "given", "inputs", "is_getter", "node", "output", "outputs", "place",
        "present", "random", "runs", "same_as",
    )  # fmt: skip

    def __init__(
        self,
        node: Node,
        recording: Recording,
        current: list[Any],
        boundary: dict[int, int],
        present: set[int],
        runs: bool,
    ) -> None:
        call = recording.calls[node.number]
        self.node = node
        self.function = call.function
        self.is_getter = type(call.function).__name__ == "method-wrapper"
        self.following: Expected | None = None
        self.inputs, self.outputs = node.inputs, node.outputs
        self.present = tuple(number for number in node.inputs if number in present)
        self.same_as = call.same_as
        self.given = tuple(boundary.get(number, -1) for number in node.outputs)
        """For each result its index among the boundary tensors; -1 inside the cut."""
        self.container: Any = None if node.container == "tensor" else _container(node.container)
        self.runs = runs
        """Computed here: a view of a present tensor, or a call that is only followed."""
        self.random = call.random
        plain = self.container is None and not runs and self.same_as[0] is None
        self.output = node.outputs[0] if plain else -1
        self.place = self.given[0] if plain else -1
        self._ambient = call.ambient
        self._autocast, _, self._default, self._device = call.ambient
        self._num_args = len(node.arguments)
        self._keywords = {name: matcher(tree, current, recording.constants) for name, tree in node.keywords}
        self._tensors: list[tuple[int, int]] = []
        self._scalars: list[tuple[int, Any, type]] = []
        self._others: list[tuple[int, Matcher]] = []
        for place, tree in enumerate(node.arguments):
            self._compile(place, tree, recording, current)

    def _compile(self, place: int, tree: Argument, recording: Recording, current: list[Any]) -> None:
        payload: Any = tree.payload
        if tree.form is Form.VALUE:
            self._tensors.append((place, payload))
        elif tree.form is Form.SCALAR and not isinstance(payload, _NO_BITS):
            self._scalars.append((place, payload, type(payload)))
        else:
            self._others.append((place, matcher(tree, current, recording.constants)))

    def matches(self, args: tuple[Any, ...], kwargs: dict[str, Any], current: list[Any]) -> bool:
        """Whether a call of the function is the recorded one."""
        if len(args) != self._num_args:
            return False
        for place, number in self._tensors:
            if args[place] is not current[number]:
                return False
        for place, wanted, kind in self._scalars:
            got = args[place]
            if got is not wanted and (type(got) is not kind or got != wanted):
                return False
        for place, matches in self._others:
            if not matches(args[place]):
                return False
        if (kwargs or self._keywords) and not self._match_keywords(kwargs):
            return False
        if _is_inference():  # results are tensors of another kind; such calls are never recorded as stateless
            return False
        if self._autocast or is_any_autocast():
            return ambient() == self._ambient
        return _get_default_dtype() is self._default and self._device == devices.CURRENT_DEVICE

    def _match_keywords(self, kwargs: dict[str, Any]) -> bool:
        if len(kwargs) != len(self._keywords):
            return False
        return all(name in self._keywords and self._keywords[name](got) for name, got in kwargs.items())


class StepMaker(Maker, Protocol):
    """Makes the values of one step by the original calls."""

    def finish(self) -> None:
        """Gives up the plan, once all that the program still holds is real."""
        ...


NOTHING = Cut(moved=frozenset(), boundary=(), saved_s=0.0, worker_s=0.0, boundary_bytes=0, stayed={})
"""The cut that moves nothing."""


class Substitution:
    """A prepared cut; serves one step at a time (:attr:`maker` is that step).

    Args:
        recording: the recorded graph.
        cut: the moved part of it.
        followed: nodes that are computed here and still compared, because they include random calls.
    """

    def __init__(self, recording: Recording, cut: Cut, followed: frozenset[int] = frozenset()) -> None:
        graph = recording.graph
        self.recording, self.cut = recording, cut
        self.current: list[Any] = [None] * len(graph.values)
        """Tensors of the current step by number of value."""
        boundary = {value: place for place, value in enumerate(cut.boundary)}
        present = {v.number for v in graph.values if v.producer is None} | set(boundary)
        self.expected: list[Expected] = []
        for number in sorted(cut.moved | followed):
            node = graph.nodes[number]
            at_hand = node.is_view and bool(node.inputs) and all(value in present for value in node.inputs)
            runs = at_hand or number not in cut.moved
            if runs:
                present |= set(node.outputs)
            self.expected.append(Expected(node, recording, self.current, boundary, present, runs))
        for one, following in zip(self.expected, self.expected[1:], strict=False):
            one.following = following
        moved_inputs = {value for number in cut.moved | followed for value in graph.nodes[number].inputs}
        self.leaf_inputs = [v.number for v in graph.values if v.producer is None and v.number in moved_inputs]
        self.maker: StepMaker | None = None
        self._stand_ins: dict[int, Deferred] = {}

    def make(self, number: int) -> torch.Tensor:
        """The plain tensor of a value of the current step."""
        assert self.maker is not None, "no step is under way"
        return self.maker.make(number)

    def settle(self, number: int, tensor: torch.Tensor) -> None:
        """A stand-in has become the value: it is the program's tensor from now on."""
        self._stand_ins.pop(number, None)
        if self.maker is not None:
            self.maker.settle(number, tensor)

    def stand_in(self, number: int) -> Deferred:
        """The deferred tensor of a value, the same one from step to step as long as the program lets go of it."""
        found = self._stand_ins.get(number)
        if found is None or not found.is_fresh():
            found = self._stand_ins[number] = Deferred(self.recording.graph.values[number], self)
        return found

    def held(self) -> list[Deferred]:
        """Deferred tensors that the program refers to; they are the program's from now on."""
        entries = Counter(map(id, self.current))
        with unseen():
            found = [
                number
                for number, references, owners in _references(self._stand_ins)
                if references > _UNHELD + entries[id(self._stand_ins[number])] or owners > 1  # graphs of autograd, say
            ]
        return [self._stand_ins.pop(number) for number in found]


def _references(table: dict[int, Any]) -> Iterator[tuple[int, int, int]]:
    """Number, references in Python, and owners in torch of each."""
    for number, tensor in table.items():
        yield number, sys.getrefcount(tensor), owners_of(tensor)


_UNHELD = next(_references({0: torch.empty(0)}))[1]
"""References to what only the table refers to, as this interpreter counts them."""


def _container(path: str) -> Any:
    """What makes the results of a call into what it returned."""
    if path.startswith(DICT):
        names: list[str] = json.loads(path.removeprefix(DICT))
        return lambda results: dict(zip(names, results, strict=True))  # pyright: ignore[reportUnknownLambdaType]
    return {"list": list, "tuple": tuple}.get(path) or find(path)

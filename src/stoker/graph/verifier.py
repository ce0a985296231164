# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false
# (torch's functions are untyped)
"""Substituting results in the training process: each call is checked against the recording before anything is replaced.

A call gets the result that a worker has computed only if it is the next moved call of the recording, with the very
tensors, equal scalars, outside tensors of the same bytes and the same ambient state. Anything else simply runs: the
batch is whole, so the program's own calls are always possible. What could change a result unseen (a write to the
batch, its memory handed out) ends substitution for the step, after deferred tensors have been made.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch

from stoker.graph.arguments import Matcher, matcher, same_bits
from stoker.graph.dataflow import Cut, Node
from stoker.graph.deferred import Deferred, Maker, become_real, deferred_in, realise
from stoker.graph.functions import Effect, Function, effect, find, simple_name, writes_by_keyword
from stoker.graph.merge import Recording
from stoker.graph.recorder import Run, ambient
from stoker.graph.replay import Prepared, run_steps, step_of


class _Expected:
    """A moved call, ready to be compared."""

    __slots__ = (
        "ambient", "container", "function", "given", "is_getter", "keywords", "leaf_inputs", "matchers", "node",
        "outputs", "runs", "same_as",
    )  # fmt: skip

    def __init__(self, node: Node, recording: Recording, current: list[Any], boundary: set[int], runs: bool) -> None:
        call = recording.calls[node.number]
        self.node = node
        self.function = call.function
        self.is_getter = type(call.function).__name__ == "method-wrapper"
        self.ambient = call.ambient
        self.matchers: list[Matcher] = [matcher(tree, current, recording.constants) for tree in node.arguments]
        self.keywords = {name: matcher(tree, current, recording.constants) for name, tree in node.keywords}
        self.outputs = node.outputs
        self.same_as = call.same_as
        self.given = tuple(number in boundary for number in node.outputs)
        self.container: Any = None if node.container == "tensor" else _container(node.container)
        self.runs = runs
        """A view of a tensor that is there: made here."""

    def matches(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a call has the recorded arguments."""
        if len(args) != len(self.matchers) or len(kwargs) != len(self.keywords):
            return False
        for matches, got in zip(self.matchers, args, strict=True):
            if not matches(got):
                return False
        if kwargs:
            for name, got in kwargs.items():
                matches = self.keywords.get(name)
                if matches is None or not matches(got):
                    return False
        return ambient() == self.ambient


class Substitution:
    """A cut made ready for the training process; serves one step at a time."""

    def __init__(self, recording: Recording, cut: Cut) -> None:
        graph = recording.graph
        self.recording, self.cut = recording, cut
        self.current: list[Any] = [None] * len(graph.values)
        boundary = set(cut.boundary)
        present = {v.number for v in graph.values if v.producer is None} | boundary
        self.expected: list[_Expected] = []
        for number in sorted(cut.moved):
            node = graph.nodes[number]
            runs = node.is_view and bool(node.inputs) and all(value in present for value in node.inputs)
            if runs:
                present |= set(node.outputs)
            self.expected.append(_Expected(node, recording, self.current, boundary, runs))
        moved_inputs = {value for number in cut.moved for value in graph.nodes[number].inputs}
        self.leaf_inputs = [v.number for v in graph.values if v.producer is None and v.number in moved_inputs]
        self._deferred: dict[int, Deferred] = {}
        self.boundary_place = {value: place for place, value in enumerate(cut.boundary)}

    def deferred(self, number: int, maker: Maker) -> Deferred:
        """The stand-in of a value: used again from step to step as long as the program lets go of it."""
        found = self._deferred.get(number)
        if found is None:
            found = self._deferred[number] = Deferred(self.recording.graph.values[number], maker)
        else:
            found._maker, found._real = maker, None
        return found

    def held(self) -> Iterator[Deferred]:
        """Deferred tensors that the program refers to; they are the program's from now on."""
        for number in list(self._deferred):
            found = self._deferred[number]
            entries = sum(1 for tensor in self.current if tensor is found)
            del found
            if _count_references(self._deferred, number) > _UNHELD + entries:
                yield self._deferred.pop(number)

    def forget(self, deferred: Deferred) -> None:
        """A stand-in has become a plain tensor."""
        if self._deferred.get(deferred._number) is deferred:
            del self._deferred[deferred._number]


def _count_references(table: dict[int, Any], number: int) -> int:
    return sys.getrefcount(table[number])


_UNHELD = _count_references({0: object()}, 0)
"""References to what only the table refers to, as this interpreter counts them."""


class Verifier:
    """One step on a prepared batch.

    Args:
        substitution: what to expect.
        leaves: tensors of the batch.
        prepared: what the worker computed.
        comparing: makes every call here as well and compares bit by bit.
    """

    def __init__(
        self, substitution: Substitution, leaves: list[torch.Tensor], prepared: Prepared, *, comparing: bool = False
    ) -> None:
        self.substitution = self._plan = substitution
        self._leaves = leaves
        self._tensors = prepared.tensors
        self._comparing = comparing
        self._place = 0
        self._expected: _Expected | None = substitution.expected[0]
        self._getter = self._expected.is_getter
        self._current = substitution.current
        self._made: dict[int, torch.Tensor] = {}
        self._versions = [leaves[number]._version for number in substitution.leaf_inputs]
        self.began = False
        self.substituted = 0
        self.differing: list[int] = []
        """Boundary values that differ from what the program computes (only when comparing)."""
        self.realised: set[int] = set()
        """Values that something needed against the recording."""

    @property
    def done(self) -> bool:
        """No call is expected any more."""
        return self._expected is None

    @property
    def complete(self) -> bool:
        """Every moved call came as recorded."""
        return self._place == len(self._plan.expected)

    # -- what the mode calls -----------------------------------------------------------------------------------------

    def call(self, function: Function, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any], run: Run) -> Any:
        """The result of a call: what the worker computed, or what the call gives."""
        expected = self._expected
        if expected is not None and (function is expected.function or (self._getter and function == expected.function)):
            if not self.began:
                self._begin()
                expected = self._expected
            if expected is not None and expected.matches(args, kwargs):
                return self._advance(expected, function, args, kwargs, run)
        kind = effect(function)
        if kind is Effect.NONE and not (kwargs and writes_by_keyword(kwargs)):
            if Deferred in types:
                args, kwargs = self._real((args, kwargs))
            return run(function, args, kwargs)
        if kind is Effect.METADATA:
            if Deferred in types:
                with torch._C.DisableTorchFunctionSubclass():
                    return function(*args, **kwargs)
            return run(function, args, kwargs)
        args, kwargs = self._real((args, kwargs))
        if simple_name(function) == "backward":  # what follows is not the beginning of a step any more
            self._expected = None
        if kind is not Effect.UNINITIALISED:
            self._before_write(args if kind is Effect.ESCAPES else args[:1], kwargs)
        return run(function, args, kwargs)

    def finish(self) -> None:
        """The step's part in the cut is over: what the program still holds becomes plain."""
        self._expected = None
        if self.began:
            self._settle_held()
            current = self._current
            for number in range(len(current)):
                current[number] = None
            self._made.clear()
        self._tensors = ()

    # -- steps -------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self.began = True
        for number, leaf in enumerate(self._leaves):
            self._current[number] = leaf
        self._made = dict(enumerate(self._leaves))
        if self._written():
            self._expected = None

    def _written(self) -> bool:
        leaves = self._leaves
        now = [leaves[number]._version for number in self._plan.leaf_inputs]
        return now != self._versions

    def _advance(self, expected: _Expected, function: Function, args: Any, kwargs: Any, run: Run) -> Any:
        current, results = self._current, []
        if self._comparing or expected.runs:
            result = run(function, args, kwargs)
            results = [result] if expected.container is None else list(result)
            if self._comparing:
                self._compare(expected, results)
        else:
            for number, given, same in zip(expected.outputs, expected.given, expected.same_as, strict=True):
                if same is not None:
                    results.append(current[same])
                elif given:
                    if self._written():
                        self._expected = None
                        return self.call(function, (Deferred,), args, kwargs, run)
                    results.append(self._tensors[self._plan.boundary_place[number]])
                else:
                    results.append(self._plan.deferred(number, self))
            result = results[0] if expected.container is None else expected.container(results)
            self.substituted += 1
        for number, tensor in zip(expected.outputs, results, strict=True):
            current[number] = tensor
            if type(tensor) is not Deferred:
                self._made[number] = tensor
        self._place += 1
        following = self._plan.expected
        if self._place < len(following):
            self._expected = following[self._place]
            self._getter = self._expected.is_getter
        else:
            self._expected = None
        return result

    def _compare(self, expected: _Expected, results: list[torch.Tensor]) -> None:
        for number, given, result in zip(expected.outputs, expected.given, results, strict=True):
            if given:
                theirs = self._tensors[self._plan.boundary_place[number]]
                if not same_bits(result, theirs) or result.stride() != theirs.stride():
                    self.differing.append(number)

    # -- the unexpected ----------------------------------------------------------------------------------------------

    def _real(self, part: Any) -> Any:
        """Arguments as plain tensors."""
        for deferred in deferred_in(part):
            self.realised.add(deferred._number)
        return realise(part)

    def make(self, number: int) -> torch.Tensor:
        """A value by the original calls, from what is there."""
        graph, calls = self._plan.recording.graph, self._plan.recording.calls
        needed, wanted = set[int](), [number]
        while wanted:
            value = wanted.pop()
            producer = graph.producer(value)
            if value not in self._made and producer is not None and producer.number not in needed:
                needed.add(producer.number)
                wanted += producer.inputs
        steps = [step_of(calls[k]) for k in sorted(needed)]
        with torch._C.DisableTorchFunction():
            run_steps(steps, self._made, self._plan.recording.constants)
        return self._made[number]

    def settle(self, number: int, tensor: torch.Tensor) -> None:
        """A stand-in has taken over the tensor that was made for it."""
        if self._made:
            self._made[number] = tensor

    def _settle_held(self) -> None:
        for deferred in self._plan.held():
            self.realised.add(deferred._number)
            become_real(deferred)

    def _before_write(self, args: Any, kwargs: dict[str, Any]) -> None:
        """A call is about to write to its first argument or ``out``, or to hand memory out."""
        if not self.began:
            return  # what it writes to shows in the version counters when the step begins
        keys = {t.untyped_storage()._cdata for t in _tensors((args, kwargs.get("out"))) if _is_dense(t)}
        hit = {n for n, t in self._made.items() if _is_dense(t) and t.untyped_storage()._cdata in keys}
        if not hit:
            return
        self._settle_held()
        if any(not hit.isdisjoint(expected.node.inputs) for expected in self._plan.expected[self._place :]):
            self._expected = None


def _container(path: str) -> Any:
    return {"list": list, "tuple": tuple}.get(path) or find(path)


def _tensors(part: Any) -> Iterator[torch.Tensor]:
    if isinstance(part, torch.Tensor):
        yield part
    elif isinstance(part, list | tuple):
        for inner in part:
            yield from _tensors(inner)
    elif isinstance(part, dict):
        yield from _tensors(list(part.values()))


def _is_dense(tensor: torch.Tensor) -> bool:
    return type(tensor) is not Deferred and tensor.layout is torch.strided

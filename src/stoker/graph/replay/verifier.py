# pyright: reportPrivateUsage=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# (torch's functions are untyped)
"""Substituting results in the training process: each call is checked against the recording before anything is replaced.

A call gets the result that a worker has computed only if it is the next moved call of the recording, with the very
tensors, equal scalars, outside tensors of the same bytes and the same ambient state. Anything else simply runs: the
batch is whole, so the program's own calls are always possible. What could change a result unseen (a write to the
batch, its memory handed out) ends substitution for the step, after deferred tensors have been made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from stoker.core.errors import BatchWrittenError
from stoker.graph.arguments import copy_of, same_bits
from stoker.graph.functions import Effect, Function, effect, simple_name, storage_of, writes_by_keyword
from stoker.graph.leaves import is_changed, mark
from stoker.graph.numerics import numerics
from stoker.graph.randomness import seeded
from stoker.graph.recording.deferred import Deferred, become_real, deferred_in, realise
from stoker.graph.recording.recorder import Run
from stoker.graph.replay.call_matcher import Expected, Substitution
from stoker.graph.replay.stage import Prepared, outside_transforms, results_of, run_steps, step_of
from stoker.graph.torch_private import count_dispatch_modes, identity_of, unseen, unseen_by_subclasses


class _Lost:
    """Stands for values that cannot be computed any more."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def make(self, number: int) -> torch.Tensor:
        raise self._error

    def settle(self, number: int, tensor: torch.Tensor) -> None: ...


class Verifier:
    """One step on a prepared batch.

    Args:
        substitution: what to expect.
        leaves: tensors of the batch.
        prepared: what the worker computed.
        comparing: makes every call here as well and compares bit by bit.
        seed: of the work item, for random calls that are made here.
    """

    def __init__(
        self,
        substitution: Substitution,
        leaves: list[Any],
        prepared: Prepared,
        *,
        comparing: bool = False,
        seed: int = 0,
    ) -> None:
        self._seed = seed
        self.substitution = self._plan = substitution
        self._leaves = leaves
        self._tensors = prepared.tensors
        self._comparing = comparing
        self._place = 0
        self._expected: Expected | None = substitution.expected[0]
        self._current: list[Any] | None = None
        self._made: dict[int, torch.Tensor] = {}
        self._leaf_ids = frozenset(map(id, leaves))
        self._marks = {number: mark(leaves[number]) for number in substitution.leaf_inputs}
        """Version counters of all values in ``_made``, which reveal writes that no mode sees (scripted code,
        extensions)."""
        self._has_settled = False
        """Values inside the cut are tensors, too, and may be written to."""
        self.began = False
        self.error: Exception | None = None
        self.done = False
        """No call is expected any more."""
        self.differing: list[int] = []
        """Boundary values that differ from what the program computes (only when comparing)."""
        self.realised: set[int] = set()
        """Values that something needed against the recording."""

    @property
    def complete(self) -> bool:
        """Whether every moved call came as recorded."""
        return self._place == len(self._plan.expected)

    @property
    def dropped(self) -> bool:
        """Always False: the recording tells when the step should have begun."""
        return False

    @property
    def missed(self) -> int | None:
        """Number of the node that did not come as recorded; None where all came."""
        return None if self.complete else self._plan.expected[self._place].node.number

    # -- what the mode calls -----------------------------------------------------------------------------------------

    def call(self, function: Function, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any], run: Run) -> Any:
        """The result of a call: what the worker computed, or what the call gives."""
        expected = self._expected
        if expected is not None and (
            function is expected.function or (expected.is_getter and function == expected.function)
        ):
            current = self._current or self._begin_with(expected, args, kwargs)
            if current is not None and expected.matches(args, kwargs, current):
                inputs = expected.inputs if self._has_settled else expected.present
                # The program may have entered a mode that sees operations since the step began.
                if not (inputs and self._changed(inputs)) and not count_dispatch_modes():
                    return self._advance(expected, current, function, args, kwargs, run)
                self._stop()
        kind = effect(function)
        if kind is Effect.NONE and not (kwargs and writes_by_keyword(kwargs)):
            if Deferred in types:
                args, kwargs = self._real((args, kwargs))
            result = run(function, args, kwargs)
            if not self.began and expected is not None and self._uses(args, kwargs, result):
                self._begin()
            return result
        if kind is Effect.METADATA:
            if Deferred in types:
                with unseen_by_subclasses():
                    return function(*args, **kwargs)
            return run(function, args, kwargs)
        args, kwargs = self._real((args, kwargs))
        if self.began and simple_name(function) == "backward":  # later calls are not the beginning of a step
            self._stop()
        if kind is not Effect.UNINITIALISED:
            resizes = kwargs.get("out") is not None or simple_name(function).startswith("resize")
            self._before_write(args if kind is Effect.ESCAPES else args[:1], kwargs, resizes=resizes)
        return run(function, args, kwargs)

    def finish(self) -> None:
        """Ends the step's part in the cut: tensors that the program still holds become plain."""
        self._stop()
        if self._plan.maker is self:
            self._settle_held()
            self._release()
        self._tensors = ()

    # -- steps -------------------------------------------------------------------------------------------------------

    def _touches(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        parts = (*_tensors((args, kwargs)), *args, *kwargs.values())
        return any(id(part) in self._leaf_ids for part in parts)

    def _uses(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> bool:
        """Whether a call begins the step; one that leaves the batch unchanged (a move to its own device) does not."""
        return id(result) not in self._leaf_ids and self._touches(args, kwargs)

    def _begin_with(self, expected: Expected, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any] | None:
        """Begins the step if this call does; gives its tensors."""
        if not self.began and self._touches(args, kwargs):
            self._begin()
            if self._current is not None and not expected.matches(args, kwargs, self._current):
                self._release()  # a loader that fetches ahead has moved it to a device, say
                self.began = False
        return self._current

    def _begin(self) -> None:
        if self._plan.maker is not None:  # steps on two batches of one loader at once: stand-ins are those of one
            self._plan.maker.finish()
        self.began = True
        self._current = self._plan.current
        self._plan.maker = self
        for number, leaf in enumerate(self._leaves):
            self._current[number] = leaf
        self._made = dict(enumerate(self._leaves))
        other = self._changed(self._plan.leaf_inputs) or numerics() != self._plan.recording.numerics
        if other or count_dispatch_modes():  # a mode of the program sees operations
            self._stop()

    def _release(self) -> None:
        """Another step may use the plan."""
        current = self._plan.current
        for number in range(len(current)):
            current[number] = None
        self._made.clear()
        self._current = self._plan.maker = None

    def _stop(self) -> None:
        """No further call is replaced in this step."""
        self._expected, self._current, self.done = None, None, True

    def _has(self, number: int, tensor: torch.Tensor) -> None:
        self._made[number] = tensor
        self._marks[number] = mark(tensor)

    def _changed(self, numbers: Iterable[int]) -> bool:
        """Whether present values were written to since they were computed."""
        made, marks = self._made, self._marks
        return any(number in made and is_changed(made[number], marks[number]) for number in numbers)

    def _advance(
        self, expected: Expected, current: list[Any], function: Function, args: Any, kwargs: Any, run: Run
    ) -> Any:
        number = expected.output
        if number < 0 or self._comparing:
            return self._advance_slowly(expected, function, args, kwargs, run)
        if expected.place < 0:
            result = self._plan.stand_in(number)
        else:
            result = self._tensors[expected.place]
            self._has(number, result)
        current[number] = result
        self._expected = expected.following
        self._place += 1
        if expected.following is None:
            self.done = True
        return result

    def _advance_slowly(self, expected: Expected, function: Function, args: Any, kwargs: Any, run: Run) -> Any:
        """Calls that run here, or have several results."""
        if self._comparing or expected.runs:
            result = self._run(expected, function, args, kwargs, run)
            results = [result] if expected.container is None else results_of(result)
            if self._comparing:
                self._compare(expected, results)
        else:
            results = [
                self._result(*one) for one in zip(expected.outputs, expected.given, expected.same_as, strict=True)
            ]
            result = results[0] if expected.container is None else expected.container(results)
        for number, tensor in zip(expected.outputs, results, strict=True):
            self._plan.current[number] = tensor
            if type(tensor) is not Deferred:
                self._has(number, tensor)
        self._expected = expected.following
        self._place += 1
        self.done = self.done or expected.following is None
        return result

    def _run(self, expected: Expected, function: Function, args: Any, kwargs: Any, run: Run) -> Any:
        if expected.random < 0:
            return run(function, args, kwargs)
        with seeded(self._seed, expected.random):
            return run(function, args, kwargs)

    def _result(self, number: int, place: int, same: int | None) -> torch.Tensor:
        if same is not None:
            return self._plan.current[same]
        return self._plan.stand_in(number) if place < 0 else self._tensors[place]

    def _compare(self, expected: Expected, results: list[torch.Tensor]) -> None:
        for number, place, result in zip(expected.outputs, expected.given, results, strict=True):
            if place >= 0:
                theirs = self._tensors[place]
                if not same_bits(result, theirs) or result.stride() != theirs.stride():
                    self.differing.append(number)

    # -- the unexpected ----------------------------------------------------------------------------------------------

    def _real(self, part: Any) -> Any:
        """Arguments as plain tensors."""
        for deferred in deferred_in(part):
            self.realised.add(deferred._number)
        return realise(part)

    def make(self, number: int) -> torch.Tensor:
        """Computes a value by the original calls, from present values.

        Raises:
            BatchWrittenError: one of its inputs was written to since, by code that no mode sees.
        """
        self.realised.add(number)
        self._has_settled = True
        graph, calls = self._plan.recording.graph, self._plan.recording.calls
        needed, present, wanted = set[int](), set[int](), [number]
        while wanted:
            value = wanted.pop()
            producer = graph.producer(value)
            if value in self._made or producer is None:
                present.add(value)
            elif producer.number not in needed:
                needed.add(producer.number)
                wanted += producer.inputs
        if self._changed(present):
            name = simple_name(calls[max(needed)].function)
            raise BatchWrittenError(
                f"the result of `{name}` must be computed from the batch as it was delivered, and code that torch's "
                "modes do not see (scripted or compiled) has written to the batch since; run with --cut off"
            )
        steps = [step_of(calls[k]) for k in sorted(needed)]
        with unseen(), torch.inference_mode(False), outside_transforms():
            run_steps(steps, self._made, self._plan.recording.constants, self._seed)
            for made in [made for step in steps for made in step.outputs]:
                self._has(made, self._made[made])
        return self._made[number]

    def settle(self, number: int, tensor: torch.Tensor) -> None:
        """A stand-in has taken over the tensor that was made for it."""
        self._has_settled = True
        if self._made:
            self._has(number, tensor)

    def _before_beginning(self, args: Any, kwargs: dict[str, Any]) -> None:
        keys = {_memory(t) for t in _tensors((args, kwargs.get("out")))}
        if None in keys or any(_memory(leaf) in keys for leaf in self._leaves):
            self.began = True
            self._stop()

    def _settle_held(self) -> None:
        for deferred in self._plan.held():
            self.realised.add(deferred._number)
            try:
                become_real(deferred)
            except BatchWrittenError as error:  # its value may never be needed
                deferred._maker = _Lost(error)

    def _detach_from_slot(self, tensors: Iterable[torch.Tensor]) -> None:
        """Copies tensors out of their slot, whose memory has a fixed size, into separate memory."""
        for tensor in tensors:
            if any(tensor is theirs for theirs in self._tensors) and not tensor.untyped_storage().resizable():
                tensor.data = copy_of(tensor)

    def _before_write(self, args: Any, kwargs: dict[str, Any], *, resizes: bool = False) -> None:
        """A call is about to write to its first argument or ``out``, or to hand memory out."""
        if not self.began:
            self._before_beginning(args, kwargs)
            return
        keys = {_memory(t) for t in _tensors((args, kwargs.get("out")))}
        hit = {n for n, t in self._made.items() if None in keys or _memory(t) in keys}
        if not hit:
            return
        if resizes:
            self._detach_from_slot(_tensors((args, kwargs.get("out"))))
        self._settle_held()
        if any(not hit.isdisjoint(expected.node.inputs) for expected in self._plan.expected[self._place :]):
            self._stop()


def _tensors(part: Any) -> Iterator[torch.Tensor]:
    if isinstance(part, torch.Tensor):
        yield part
    elif isinstance(part, list | tuple):
        for inner in part:
            yield from _tensors(inner)
    elif isinstance(part, dict):
        yield from _tensors(list(part.values()))


def _memory(tensor: Any) -> int | None:
    """The storage of a tensor; None if unknown, -1 for what is not a tensor yet."""
    if type(tensor) is Deferred or not isinstance(tensor, torch.Tensor):
        return -1
    storage = storage_of(tensor)
    return None if storage is None else identity_of(storage)

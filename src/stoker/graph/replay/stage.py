# pyright: reportUnknownArgumentType=false
# (torch's pinning is private and untyped)
"""Runs the moved calls outside the program: in a data worker after collation, or for a deferred tensor.

A :class:`Stage` is what workers get (it pickles: functions travel as paths); its result is a :class:`Prepared` batch.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from stoker.graph.arguments import Constants, fill_in
from stoker.graph.dataflow import Argument, Form, Value
from stoker.graph.functions import find
from stoker.graph.leaves import is_changed, leaves_of, mark, signature_of
from stoker.graph.randomness import seeded
from stoker.graph.recording.recorder import Ambient, Call, ambient
from stoker.graph.torch_private import inside_transform, pin_memory, without_transforms

Look = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
"""Shape, strides and type of a tensor."""


class _OtherStep(Exception):
    """A result differs from the recording in shape or type."""


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """One call of a plan."""

    path: str
    arguments: tuple[Argument, ...]
    keywords: tuple[tuple[str, Argument], ...]
    outputs: tuple[int, ...]
    ambient: Ambient
    random: int = -1
    """Place among the random calls of the step; -1: it draws no random numbers."""
    looks: tuple[Look, ...] = ()
    """What its results look like, where another look means another step (sizes that depend on elements)."""
    drops: tuple[int, ...] = ()
    """Values that nothing needs after it: the memory of each serves the next calls, while it is still in the cache."""


@dataclass(frozen=True, slots=True)
class StagePlan:
    """The moved calls of one variant."""

    variant: int
    signature: tuple[Any, ...]
    steps: tuple[PlannedCall, ...]
    constants: dict[int, torch.Tensor]
    boundary: tuple[int, ...]


@dataclass(slots=True)
class Prepared:
    """A batch with the boundary tensors that a worker has computed from it."""

    batch: Any
    variant: int
    tensors: tuple[torch.Tensor, ...]
    failure: str = ""
    """Why the calls failed in the worker; the batch is complete anyway."""

    def pin_memory(self) -> Prepared:
        """The same in page-locked memory, as torch pins batches."""
        return Prepared(pin_memory(self.batch), self.variant, tuple(map(pin_memory, self.tensors)), self.failure)


@dataclass
class Stage:
    """The work on a collated batch: the plan for batches with its signature."""

    plans: list[StagePlan] = field(default_factory=list[StagePlan])

    def __call__(self, batch: Any, seed: int = 0) -> Any:
        """A :class:`Prepared` batch; the batch itself where no plan is for it, or a result looks otherwise.

        Args:
            batch: what the loader made.
            seed: of the work item.
        """
        leaves = leaves_of(batch)
        signature = signature_of(leaves)
        for plan in self.plans:
            if plan.signature == signature:
                return _prepare(plan, batch, leaves, seed)
        return batch


def _prepare(plan: StagePlan, batch: Any, leaves: list[Any], seed: int) -> Any:
    values = dict(enumerate(leaves))
    marks = [mark(leaf) for leaf in leaves]
    try:
        with torch.no_grad():
            run_steps(plan.steps, values, plan.constants, seed)
        if any(is_changed(leaf, marked) for leaf, marked in zip(leaves, marks, strict=True)):
            raise RuntimeError("a call wrote to the batch")
        return Prepared(batch, plan.variant, tuple(values[n] for n in plan.boundary))
    except _OtherStep:
        return batch
    except Exception as error:  # the training process makes the calls itself, and raises what they raise
        return Prepared(batch, plan.variant, (), f"{type(error).__name__}: {error}")


def run_steps(
    steps: Iterable[PlannedCall], values: dict[int, torch.Tensor], constants: Constants, seed: int = 0
) -> None:
    """Makes calls in order; ``values`` gets their results by number. ``seed`` is the work item's."""
    for step in steps:
        if all(number in values for number in step.outputs):
            continue
        args = [fill_in(tree, values, constants) for tree in step.arguments]
        kwargs = {name: fill_in(tree, values, constants) for name, tree in step.keywords}
        function = find(step.path)
        if step.random < 0 and step.ambient == ambient():  # as a rule; contexts cost more than many calls
            result = function(*args, **kwargs)
        else:
            drawing = seeded(seed, step.random) if step.random >= 0 else contextlib.nullcontext()
            with under(step.ambient), drawing:
                result = function(*args, **kwargs)
        tensors = results_of(result)
        for tensor, look in zip(tensors, step.looks, strict=False):
            if (tuple(tensor.shape), tensor.stride(), tensor.dtype) != look:
                raise _OtherStep(step.path)
        values.update(zip(step.outputs, tensors, strict=True))
        for number in step.drops:
            del values[number]
        del args, kwargs, result, tensors


def results_of(result: Any) -> list[torch.Tensor]:
    """The tensors that a call returned, in the order in which they are numbered."""
    if isinstance(result, torch.Tensor):
        return [result]
    return list(result.values()) if isinstance(result, dict) else list(result)


def with_drops(steps: Sequence[PlannedCall], kept: Collection[int]) -> tuple[PlannedCall, ...]:
    """The steps, each with the values that are used for the last time there and are neither kept nor of the batch."""
    found: list[PlannedCall] = []
    needed, made = set(kept), {number for step in steps for number in step.outputs}
    for step in reversed(steps):
        used = {*step.outputs, *_values_of(step)}
        found.append(dataclasses.replace(step, drops=tuple(sorted((used & made) - needed))))
        needed |= used
    return tuple(reversed(found))


def _values_of(step: PlannedCall) -> set[int]:
    leaves = [leaf for tree in (*step.arguments, *(tree for _, tree in step.keywords)) for leaf in tree.leaves()]
    return {leaf.payload for leaf in leaves if leaf.form is Form.VALUE and isinstance(leaf.payload, int)}


def step_of(call: Call, values: Sequence[Value] = ()) -> PlannedCall:
    """A recorded call as a step of a plan; with the values of its graph, the results must look as they do there."""
    looks = tuple(_look_of(values[number]) for number in call.outputs) if values else ()
    return PlannedCall(call.path, call.arguments, call.keywords, call.outputs, call.ambient, call.random, looks)


def _look_of(value: Value) -> Look:
    return value.shape, value.stride, getattr(torch, value.dtype)


@contextlib.contextmanager
def under(wanted: Ambient) -> Generator[None]:
    """Autocast, default type and device as they were when a call was recorded."""
    now = ambient()
    if now == wanted:
        yield
        return
    enabled, kind, default, device = wanted
    torch.set_default_dtype(default)
    try:
        with torch.autocast("cpu", dtype=kind, enabled=enabled), device or contextlib.nullcontext():
            yield
    finally:
        torch.set_default_dtype(now[2])


def outside_transforms() -> contextlib.AbstractContextManager[Any]:
    """Disables transforms (vmap, grad) for what is computed here: results must not be their wrappers."""
    return contextlib.nullcontext() if inside_transform() is None else without_transforms()

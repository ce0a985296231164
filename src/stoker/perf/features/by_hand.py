# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
"""Steps of a program that updates its weights itself, without an optimizer of ``torch.optim``.

An update: after a backward pass, a weight of a module that ran is written in place or gets other data, outside of
forward and backward passes. It lasts until its last such write before the next forward pass, backward pass or batch.
Its calls are those since the backward pass, or since the last write of a gradient before it, such as that of clipping.
Which write is the last is known when the next pass begins; of later updates, it is the one by which as many were made
as in the first. All this holds for a program without optimizers alone: from the first that is made, nothing counts.
"""

from __future__ import annotations

import functools
import importlib
import weakref
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from stoker.core.patching import Patches
from stoker.perf.features.torch_private import RUN_BACKWARD, identity_of, remove_hook, run_backward
from stoker.perf.features.tracing.layers import memory_of
from stoker.perf.features.tracing.recorder import DispatchRecorder
from stoker.perf.features.tracing.redirect import Redirect
from stoker.perf.features.tracing.watch import StepFollower


class _Moment(NamedTuple):
    """How much was recorded so far."""

    calls: int
    buffers: int
    scratch: int
    events: int
    moved_bytes: int


class UpdatesByHand:
    """Sees a program's own updates of its weights.

    Args:
        recorder: of the program's calls.
        redirect: tells where a tensor gets other data.
        watch: knows the modules that ran, and their weights.
        stepped: called when an update is over that ends a step. Of several models that are updated in turn, updates of
            the first end steps, as steps of the first of several optimizers do.
    """

    def __init__(
        self, recorder: DispatchRecorder, redirect: Redirect, watch: StepFollower, stepped: Callable[[], None]
    ) -> None:
        self._recorder, self._redirect, self._watch, self._stepped = recorder, redirect, watch, stepped
        self._patches = Patches("a program is traced: updates of its weights")
        self.num_backward_passes = 0
        """Passes that began outside of others."""
        self.has_several = False
        """Whether weights of several models are updated in turn."""
        self.num_updates = 0
        """Updates that began."""
        self.has_optimizer = self._is_off = False
        """Whether an optimizer was made, whose steps count, and whether nothing counts any more."""
        self._depth = 0
        self._is_awaited = self._is_open = False
        """Whether a backward pass was seen since the last update, and whether an update goes on."""
        self._weights: dict[int, int] = {}
        """Identities of the weights by their buffers."""
        self._first: set[int] = set()
        self._most = 0
        """What the first update writes, and how many times."""
        self._written: set[int] = set()
        self._count = 0
        """The same of the current one so far."""
        self._begun = self._ended = self._start = self._moment()
        self._gradients: set[int] = set()
        self._results: list[weakref.ref[Tensor]] = []
        """Gradients that a backward pass gave back, as ``torch.autograd.grad`` has it."""

    @contextmanager
    def hooks(self) -> Generator[None]:
        """Sees them in the block."""
        registry: Any = importlib.import_module("torch.nn.modules.module")
        steps: Any = importlib.import_module("torch.optim.optimizer")
        handles = [
            registry.register_module_forward_pre_hook(self._enter),
            steps.register_optimizer_step_pre_hook(self._other),
        ]
        kind: Any = Optimizer
        self._recorder.on_write, self._redirect.on_assign = self._write, self._assign
        try:
            with self._patches as patches:
                patches.set(kind, "__init__", self._making(kind.__init__))
                patches.set(torch.autograd, RUN_BACKWARD, self._backward(run_backward()))
                yield
        finally:
            self.close()
            for handle in handles:
                remove_hook(handle)

    def batch_begins(self) -> None:
        """A batch is about to be loaded."""
        self._end()

    def _enter(self, *_: Any) -> None:
        self._pass_begins()

    def _other(self, *_: Any) -> None:
        """An optimizer was made, or steps that was made before."""
        self.has_optimizer = True
        self.close()

    def close(self) -> None:
        """Sees no more updates."""
        if self.num_updates and not self._is_off:  # the record was begun by an update
            self._recorder.recording = False
        self._is_off = True
        self._is_open = self._is_awaited = False
        self._recorder.on_write = self._redirect.on_assign = None

    def _making(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def make(*args: Any, **kwargs: Any) -> None:
            self._other()
            original(*args, **kwargs)

        return make

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            self._pass_begins()
            self._depth += 1
            try:
                found = original(*args, **kwargs)
            finally:
                self._depth -= 1
            if not self._depth:
                self.num_backward_passes += 1
                self._await(found)
            return found

        return backward

    def _await(self, results: Any) -> None:
        """From now on, a write of a weight is an update."""
        if self._is_off:
            return
        buffers, parameters = self._recorder.buffers, self._watch.parameters.values()
        self._is_awaited = True
        self._weights = {buffers.number(each): id(each) for each in parameters if each.layout is torch.strided}
        gradients = (each.grad for each in parameters if each.grad is not None)
        self._gradients = {_memory_id(each) for each in gradients}
        self._results = [weakref.ref(each) for each in results or () if isinstance(each, Tensor)]
        self._begun = self._moment()

    def _pass_begins(self) -> None:
        if not self._watch.is_inside:
            self._end()

    def _write(self, tensors: Sequence[Tensor]) -> None:
        """A call has written tensors."""
        if not self._may_update():
            return
        known = self._recorder.buffers.known
        numbers = [known(memory_of(each)) for each in tensors]
        written = [self._weights[each] for each in numbers if each in self._weights]
        if written:
            self._update(written)
        elif not self._is_open and any(_memory_id(each) in self._gradients for each in tensors):
            self._begun = self._moment()

    def _assign(self, tensor: Tensor) -> None:
        """A tensor has other data."""
        if id(tensor) not in self._watch.parameters:
            return
        self._recorder.buffers.give_role(tensor, "weight")
        if self._may_update():
            self._update([id(tensor)])

    def _may_update(self) -> bool:
        return self._is_awaited and not self._depth and not self._watch.is_inside

    def _update(self, written: Iterable[int]) -> None:
        if not self._is_open:
            self._is_open, self._written, self._count = True, set(), 0
            self.num_updates += 1
            self._note_gradients()
            if not self._first:  # what comes after the first update is of the step that is recorded
                self._recorder.recording = True
        identities = list(written)
        self._written.update(identities)
        self._count += len(identities)
        self._ended = self._moment()
        if self._first & self._written and self._count >= self._most:
            self._end()

    def _note_gradients(self) -> None:
        """Notes them while they are there: programs drop them next."""
        found = [memory_of(each.grad) for each in self._watch.parameters.values() if each.grad is not None]
        found += [each for reference in self._results if (each := reference()) is not None]
        if self._first:
            for each in found:
                self._recorder.buffers.give_role(each, "gradient")
        else:
            self._recorder.buffers.note_roles(found, "gradient")

    def _end(self) -> None:
        if not self._is_open:
            return
        self._is_open = self._is_awaited = False
        begun, ended = self._begun, self._ended
        buffers, calls = self._recorder.buffers, self._recorder.calls
        for call in calls[begun.calls : ended.calls]:
            if call.phase == "forward" and not call.module:
                call.phase = "optimizer"
        for number in range(begun.buffers, ended.buffers):
            if buffers.phases[number] == "forward":
                buffers.phases[number] = "optimizer"
        for place in range(begun.scratch, ended.scratch):
            at, size, phase, *_ = buffers.scratch[place]
            if phase == "forward":
                buffers.scratch[place] = (at, size, "optimizer", *buffers.scratch[place][3:])
        if not self._first:
            self._first, self._most = self._written, self._count
        elif not self._first & self._written:
            self.has_several = True
            return
        self._stepped()

    def begin(self) -> None:
        """Starts the record of a step, from the last write of the update that is over."""
        buffers, ended = self._recorder.buffers, self._ended
        roles = dict(buffers.old_roles)
        later = self._recorder.calls[ended.calls :]
        self._recorder.begin()
        self._recorder.calls += later
        buffers.old_roles.update(roles)
        buffers.begun = ended.events
        self._start = ended
        self._redirect.moved_bytes -= ended.moved_bytes

    def give_states(self) -> int:
        """Gives what updates alone use, from step to step, the role of states; returns its bytes.

        What replaces a state in the recorded step has no role.
        """
        buffers, others = self._recorder.buffers, set[int]()
        found: set[int] = set()
        for call in self._recorder.calls:
            numbers = {number for number, *_ in (*call.reads, *call.writes)}
            (found if call.phase == "optimizer" else others).update(numbers)
        found = {each for each in found - others if each < self._start.buffers and each not in buffers.roles}
        found -= buffers.old_roles.keys()
        buffers.roles.update(dict.fromkeys(found, "state"))
        return sum(buffers.sizes[number] for number in found)

    def _moment(self) -> _Moment:
        buffers = self._recorder.buffers
        return _Moment(
            len(self._recorder.calls), len(buffers.sizes), len(buffers.scratch), buffers.now, self._redirect.moved_bytes
        )


def _memory_id(tensor: Tensor) -> int:
    return identity_of(memory_of(tensor).untyped_storage())

# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false
"""Runs a user's program up to its second optimizer step, in a separate process, and writes the features of that step.

Its parameters are fake from their creation; its data are real. The first step is skipped, since optimizers create their
state in it. If the memory of its evaluation is wanted, the program then goes on to its first pass without gradients.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import sys
import weakref
from collections.abc import Generator
from pathlib import Path
from typing import Any, NoReturn, Protocol

import msgspec.structs
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from stoker.core.errors import StokerError
from stoker.core.patching import Patches
from stoker.core.units import format_count
from stoker.perf.features.by_hand import UpdatesByHand
from stoker.perf.features.evaluating import EvaluationFollower
from stoker.perf.features.program import EVALUATION, TIMELINE
from stoker.perf.features.raised import hush_stand_ins, print_raised
from stoker.perf.features.records import StepFeatures
from stoker.perf.features.step import fake_of, prepare_optimizer
from stoker.perf.features.torch_private import NEXT_INDEX, BaseIterator, FakeTensor, import_compiler, tree_leaves
from stoker.perf.features.tracing.accelerator import answering
from stoker.perf.features.tracing.distributed import alone
from stoker.perf.features.tracing.growing import GrowthWatch
from stoker.perf.features.tracing.layers import memory_of
from stoker.perf.features.tracing.places import frames
from stoker.perf.features.tracing.recorder import DispatchRecorder
from stoker.perf.features.tracing.redirect import Redirect, redirected
from stoker.perf.features.tracing.summing import features_of, states_of
from stoker.perf.features.tracing.timelines import timeline_of
from stoker.perf.features.tracing.watch import StepFollower, first_size

import_compiler()  # here, so that forks of a prepared process need not


class Companion(Protocol):
    """What else runs with a traced program, in its process."""

    def start(self, recorder: DispatchRecorder, watch: StepFollower) -> None:
        """The program begins."""
        ...

    def stepped(self) -> None:
        """The step that is recorded is over; what it made is still alive."""
        ...

    def stop(self) -> None:
        """The program is over; what else was replaced in it is restored after this."""
        ...


class _Program:
    """The program, up to the step that is recorded."""

    def __init__(
        self, target: str, hints: dict[str, float], out: Path, batch_times: float = 1, evaluates: bool = False,
        companion: Companion | None = None,
    ) -> None:  # fmt: skip
        self.recorder = DispatchRecorder(hints)
        self.recorder.shapes_weights = True
        self.redirect = Redirect(self.recorder, target)
        self.watch = StepFollower(self.recorder)
        self.by_hand = UpdatesByHand(self.recorder, self.redirect, self.watch, self._updated)
        self.target, self.out, self.batch_times = target, out, batch_times
        self.companion = companion
        self.name = ""
        self.batches: list[tuple[int, int]] = []
        """Samples and bytes of the batches of the current step, or of the last earlier step that loaded one.

        Not the tensors: they must die when the program drops them."""
        self.begun = False
        self.has_several = False
        """Whether several optimizers step; after two steps of the first, all have created their states."""
        self._first: Optimizer | None = None
        """The optimizer whose second step ends the program, which may have several that step in turn."""
        self._growth = GrowthWatch(self.recorder.buffers)
        self._ahead: list[tuple[int, int]] = []
        self._iterators: weakref.WeakSet[Any] = weakref.WeakSet()
        self._found: StepFeatures | None = None
        """Features of the step, once they are written; the program goes on for its evaluation alone."""
        self._evaluation = EvaluationFollower(self._begin_evaluation, self._end_evaluation) if evaluates else None

    def run(self, words: list[str]) -> None:
        """Runs the script, or ``-m module``, as python would; ends the process when the step is found."""
        is_module = words[0] == "-m"
        sys.argv = words = words[is_module:]
        self.name = os.path.basename(words[0])
        sys.path.insert(0, os.getcwd() if is_module else os.path.dirname(os.path.abspath(words[0])))
        note = self.recorder.hints.note
        accelerator = answering(note) if self.target == "cuda" else contextlib.nullcontext()
        evaluation = self._evaluation.hooks() if self._evaluation is not None else contextlib.nullcontext()
        with (
            evaluation,
            redirected(self.recorder, self.redirect),
            self.by_hand.hooks(),
            self.watch.hooks(),
            self._patched(),
            accelerator,
            alone(note),
        ):
            if self.companion is not None:
                self.companion.start(self.recorder, self.watch)
            try:
                if is_module:
                    runpy.run_module(words[0], run_name="__main__", alter_sys=True)
                else:
                    runpy.run_path(words[0], run_name="__main__")
            finally:
                if self.companion is not None:
                    self.companion.stop()

    @contextlib.contextmanager
    def _patched(self) -> Generator[None]:
        original = nn.Parameter.__new__
        step: Any = __import__("importlib").import_module("torch.optim.optimizer")
        before = step.register_optimizer_step_pre_hook(lambda optimizer, *_: prepare_optimizer(optimizer, self.target))
        after = step.register_optimizer_step_post_hook(self._stepped)
        load, init, choose = BaseIterator.__next__, DataLoader.__init__, getattr(BaseIterator, NEXT_INDEX)

        def parameter(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
            if isinstance(data, Tensor) and not isinstance(data, FakeTensor):
                data = fake_of(self.recorder, data.detach())
            if isinstance(data, Tensor) and data.layout is torch.strided:
                self.recorder.buffers.number(data)  # here, since the line that makes a parameter says more than its use
            return original(cls, data, requires_grad)

        def loader(this: Any, *args: Any, **rest: Any) -> None:
            for name in ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout"):
                rest.pop(name, None)
            init(this, *args, **{**rest, "num_workers": 0, "pin_memory": False})

        def loaded(this: Any) -> Any:
            return self._load(load, this)

        def chosen(this: Any) -> Any:
            """The samples of a batch, taken again and again until they are as many as asked for."""
            found = choose(this)
            if self.batch_times == 1 or not isinstance(found, (list, tuple)):
                return found
            count = max(1, round(len(found) * self.batch_times))
            return [found[place % len(found)] for place in range(count)]

        def save(*_: Any, **__: Any) -> None:
            # Weights have no values here: a good checkpoint must not be overwritten by them.
            self.recorder.hints.note("`torch.save` wrote nothing")

        changed: list[tuple[Any, str, Any]] = [
            (torch, "save", save),
            (nn.Parameter, "__new__", staticmethod(parameter)),
            (DataLoader, "__init__", loader),
            (BaseIterator, "__next__", loaded),
            (BaseIterator, NEXT_INDEX, chosen),
        ]
        try:
            with Patches("a program is traced: loaders and parameters") as patches:
                for owner, name, value in changed:
                    patches.set(owner, name, value)
                yield
        finally:
            before.remove()
            after.remove()

    def _load(self, load: Any, iterator: Any) -> Any:
        self.by_hand.batch_begins()
        if self._found is None:
            self._iterators.add(iterator)
        elif self._evaluation is not None and not self._evaluation.may_load(iterator):
            raise StopIteration
        recording, self.recorder.recording = self.recorder.recording, False
        try:
            batch = load(iterator)
        finally:
            self.recorder.recording = recording
        tensors = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)]
        self.batches.append((first_size(tensors), sum(each.numel() * each.element_size() for each in tensors)))
        for tensor in tensors:
            self.recorder.buffers.give_role(tensor, "input")
        return batch

    def _stepped(self, optimizer: Optimizer, *_: Any) -> None:
        if self._found is not None:
            return
        if self._first is None:
            self._first, self.begun = optimizer, False
        if optimizer is not self._first:
            return
        several = len(self.watch.optimizers) > 1
        if not self.begun or several > self.has_several:
            self.redirect.moved_bytes = 0
            self.recorder.begin()
            self._begin(several)
            return
        self._end()

    def _updated(self) -> None:
        """The program has updated its weights itself."""
        if self._found is not None:
            return
        several = self.by_hand.has_several
        if not self.begun or several > self.has_several:
            self.by_hand.begin()
            self._begin(several)
            return
        self.watch.passes_by_hand = len(self.recorder.buffers.marks)
        self.recorder.hints.note("the program updates its weights itself, and its updates were taken as its steps")
        self._end(self.by_hand.give_states())

    def _begin(self, several: bool) -> None:
        """Starts the step that is recorded."""
        self.begun, self.has_several = True, several
        self._ahead = self.batches[-1:]
        self.batches = []
        self.watch.samples = 0
        self._note_roles()
        self._growth.begin(frames())

    def _end(self, state_bytes: int | None = None) -> None:
        """Writes what the step was.

        Args:
            state_bytes: that updates keep from one to the next; by default states of optimizers are asked for.
        """
        self.by_hand.close()
        self.recorder.recording = False
        self.recorder.buffers.grows = self._growth.found(frames())
        if self.companion is not None:
            self.companion.stepped()
        batches = self.batches or self._ahead  # what this step computes with may have been loaded during the one before
        size = sum(samples for samples, _ in batches)
        if not size:
            size = max(1, self.watch.samples)
            self.recorder.hints.note(
                f"a step was taken to have {size} samples: the first size of what the model is given"
            )
        found = features_of(
            self.recorder, self.watch, list(self.watch.optimizers.values()), target=self.target, inputs=(),
            batch_size=size, name=self.name, batches=len(batches),
            input_bytes=sum(nbytes for _, nbytes in batches) or self.redirect.moved_bytes,
        )  # fmt: skip
        if state_bytes is not None:
            weights = msgspec.structs.replace(found.weights, optimizer_bytes=state_bytes)
            found = msgspec.structs.replace(found, weights=weights)
        self.out.with_name(TIMELINE).write_bytes(timeline_of(self.recorder, self.watch, found).to_json())
        answer = {"features": json.loads(found.to_json())}
        if self._evaluation is None:
            self.end(answer)
        self.out.write_text(json.dumps(answer), encoding="utf-8")
        self._found = found
        self.batches = []
        for iterator in list(self._iterators):
            self._evaluation.known(iterator)
        self._evaluation.watch()

    def _begin_evaluation(self) -> None:
        self.recorder.begin()
        self._note_roles()

    def _end_evaluation(self) -> None:
        """Writes the memory of the evaluation, if there was one, and ends the process."""
        found, self._found = self._found, None
        if found is None:  # it is the answer that is written
            return
        self.recorder.recording = False
        if self._evaluation is not None and self._evaluation.is_evaluating:
            size = self.batches[-1][0] if self.batches else found.batch_size
            found = msgspec.structs.replace(found, batch_size=max(1, size))
            timeline = timeline_of(self.recorder, self.watch, found)
            descriptor = os.open(self.out.with_name(EVALUATION), os.O_WRONLY | os.O_CREAT)
            os.write(descriptor, timeline.to_json())
        os._exit(0)

    def _note_roles(self) -> None:
        """Gradients and states that the step finds: it may replace them by others."""
        gradients = (each.grad for each in self.watch.parameters.values())
        self.recorder.buffers.note_roles((memory_of(each) for each in gradients if each is not None), "gradient")
        for optimizer in self.watch.optimizers.values():
            self.recorder.buffers.note_roles(states_of(optimizer), "state")

    def missing(self) -> str:
        """Why there is nothing to characterise."""
        wanted = "three steps of the first of its optimizers" if self.has_several else "two optimizer steps"
        taken = "after two" if self.has_several else "after one" if self.begun else "without an optimizer step"
        said = f"`{self.name}` must take {wanted} to be characterised, and ended {taken}"
        return said + self.seen()

    def seen(self) -> str:
        """What was seen in place of steps of an optimizer, as the end of a sentence; empty where some stepped."""
        if self.watch.optimizers:
            return ""
        passes = format_count(self.by_hand.num_backward_passes, "backward pass", "backward passes")
        updates = format_count(self.by_hand.num_updates, "update")
        made = "an optimizer that took no step" if self.by_hand.has_optimizer else "no optimizer"
        return (
            f"; seen: {passes}, {made}, {updates} of a module's weights by the program itself. A step can be named in "
            f"place of the script, as module:function"
        )

    def finish(self) -> None:
        """Ends the process if the step was found already."""
        if self._found is not None:
            self._end_evaluation()

    def end(self, content: dict[str, Any]) -> NoReturn:
        """Writes the answer and ends the process at once: the rest of the program is not needed."""
        self.out.write_text(json.dumps(content), encoding="utf-8")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def main(companion: Companion | None = None) -> None:
    """Arguments: where to write, the target, hints and a factor of batches as JSON, then the program's command line."""
    out, target, said, *words = sys.argv[1:]
    hints, batch_times, evaluates = json.loads(said)
    hush_stand_ins()
    program = _Program(target, hints, Path(out), batch_times, evaluates, companion)
    try:
        program.run(words)
    except StokerError as error:
        program.finish()
        program.end({"error": error.args[0]})
    except SystemExit:
        pass
    except BaseException as error:
        program.finish()
        print_raised(error)
        program.out.write_text(json.dumps({"seen": program.seen()}), encoding="utf-8")
        sys.exit(1)
    program.finish()
    program.end({"error": program.missing()})


if __name__ == "__main__":
    main()

"""The passes of one compiled graph: recorded once, then planned; in ordinary memory where the arena is not theirs."""

from __future__ import annotations

import itertools
import sys
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from torch import SymBool, SymFloat, SymInt, Tensor
from torch.fx import GraphModule
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

import stoker.train.arena.torch_private as private
from stoker.core.saying import say
from stoker.train.arena.code import Straight
from stoker.train.arena.memory import Arena, Views
from stoker.train.arena.planning import ArenaLayout, laid_out
from stoker.train.arena.recording import GraphRecorder, GraphRecording
from stoker.train.arena.torch_private import Compiled

MOST_SHAPES = 8
"""Plans of one graph with dynamic shapes; further shapes run in ordinary memory."""
RECORDED = "recorded for the plan"
FIRST = "no backward pass has been recorded yet"
BUSY = "something else lay in the arena"
LOOKED_AT = "calls are looked at by a mode of torch"
TOO_MANY = f"more than {MOST_SHAPES} shapes"
KEPT = "what was saved is needed again"
HELD = "something besides autograd holds what was saved"
UNPLANNED = "its forward pass ran in ordinary memory"
BY_VALUE = "shapes depend on values"
LEFT = "left to aot_eager"

Key = tuple[Any, ...]


class ShapePlan:
    """One plan of a pair of graphs: for arguments of one shape."""

    def __init__(self) -> None:
        self.forward: GraphRecording | None = None
        self.backward: GraphRecording | None = None
        self.layout: ArenaLayout | None = None
        self.run_forward: Compiled | None = None
        self.run_backward: Compiled | None = None
        self.saved: list[tuple[int, int]] = []
        """Place among the backward graph's arguments, and bytes from the arena's start, of what lies in the arena."""
        self.views: Views | None = None

    def unbind(self) -> None:
        """Forgets the code, which refers to the views of an arena."""
        self.run_forward = self.run_backward = self.views = None


class Graphs:
    """A forward graph and, in training, its backward graph.

    Args:
        arena: that their buffers lie in; shared with others that run in turn.
        stays: whether it is this arena or none; else the graphs get one of their own once they meet others in it.
    """

    def __init__(self, arena: Arena, *, stays: bool) -> None:
        self.name, self.arena = f"graph {next(_numbers)}", arena
        self._stays = stays
        self._num_returned = 0  # results that are the program's; the others are saved for the backward pass
        self._trains = False
        self._modules: dict[str, GraphModule] = {}
        self._plain: dict[str, Compiled] = {}
        self._is_dynamic = self._by_value = False
        self._shapes: dict[Key, ShapePlan] = {}
        self._by_saved: dict[Key, ShapePlan] = {}
        self._saved: set[str] = set()
        self.planned_passes = 0
        self.ordinary: Counter[str] = Counter()
        self.problem = ""
        _known.add(self)

    def partitioned(self, num_returned: int) -> None:
        """Takes note that the graph was cut into a forward and a backward graph."""
        self._num_returned, self._trains = num_returned, True

    def compile_forward(self, module: GraphModule, inputs: Sequence[Any]) -> Compiled:
        """What runs the forward graph."""
        return self._add("forward", module, inputs, self._forward)

    def compile_backward(self, module: GraphModule, inputs: Sequence[Any]) -> Compiled:
        """What runs the backward graph."""
        return self._add("backward", module, inputs, self._backward)

    def _add(self, which: str, module: GraphModule, inputs: Sequence[Any], run: Compiled) -> Compiled:
        self._modules[which] = module
        self._plain[which] = private.plain(module, inputs)
        try:
            self._is_dynamic = self._is_dynamic or is_dynamic(module)
            self._by_value = self._by_value or depends_on_values(module)
        except Exception as error:
            self._leave(error)

        def boxed(args: list[Any]) -> Sequence[Any]:
            return run(args)

        return private.boxed(boxed)

    def layouts(self) -> list[ArenaLayout]:
        """The plans so far."""
        return [shape.layout for shape in [*self._shapes.values()] if shape.layout is not None]

    def _forward(self, args: list[Any]) -> Sequence[Any]:
        shape, why = self._shape_for(args)
        if shape is None:
            return self._ordinary("forward", args, why)
        if shape.forward is None:
            return self._record_forward(shape, args)
        if self._trains and shape.backward is None:
            return self._ordinary("forward", args, FIRST)
        layout = shape.layout or self._lay_out(shape)
        if layout is None:
            return self._ordinary("forward", args, LEFT)
        if not self.arena.take(shape, layout.nbytes):
            self._move_out()
            return self._ordinary("forward", args, BUSY)
        try:
            run = shape.run_forward or self._build(shape, layout)
            if run is None:
                return self._ordinary("forward", args, LEFT)
            self.planned_passes += 1
            return run(args)
        finally:
            self.arena.leave()

    def _backward(self, args: list[Any]) -> Sequence[Any]:
        shape = self._by_saved.get(self._saved_key(args)) if self._is_dynamic else self._shapes.get(())
        if shape is None or shape.forward is None or private.is_looked_at() or self.problem:
            return self._ordinary("backward", args, UNPLANNED)
        if shape.backward is None:
            return self._record_backward(shape, args)
        if shape.run_backward is None or self.arena.tenant is not shape or not self._lies_as_planned(shape, args):
            return self._ordinary("backward", args, UNPLANNED)
        if private.keeps_graph():
            return self._ordinary("backward", args, KEPT)
        if references(args, shape.saved) > _ALONE or not self.arena.take_back(shape, len(shape.saved)):
            return self._ordinary("backward", args, HELD)
        try:
            self.planned_passes += 1
            return shape.run_backward(args)
        finally:
            self.arena.leave()

    def _ordinary(self, which: str, args: list[Any], why: str) -> Sequence[Any]:
        self.ordinary[why] += 1
        used_up = which == "backward" and self.arena.used_up and self.arena.num_foreign() > 0
        if used_up and any(type(each) is Tensor and self.arena.holds(each) for each in args):
            raise RuntimeError(
                "`backward` must not run again after one without `retain_graph=True` that failed: it may have "
                "overwritten what was saved; run the forward pass again"
            )
        return self._plain[which](args)

    def _shape_for(self, args: list[Any]) -> tuple[ShapePlan | None, str]:
        if self.problem:
            return None, LEFT
        if private.is_looked_at():
            return None, LOOKED_AT
        if self._by_value:
            return None, BY_VALUE
        key = _key_of(args) if self._is_dynamic else ()
        shape = self._shapes.get(key)
        if shape is None:
            if len(self._shapes) >= MOST_SHAPES:
                return None, TOO_MANY
            shape = self._shapes[key] = ShapePlan()
        return shape, ""

    def _saved_key(self, args: Sequence[Any]) -> Key:
        """The shape of what a forward pass saved, as its backward pass finds it."""
        names = [node.name for node in self._modules["backward"].graph.nodes if node.op == "placeholder"]
        return _saved_key_of((name, value) for name, value in zip(names, args, strict=True) if name in self._saved)

    def _record_forward(self, shape: ShapePlan, args: list[Any]) -> Sequence[Any]:
        recorder = GraphRecorder(self._modules["forward"])
        self.ordinary[RECORDED] += 1
        results = recorder.run(args)
        recording = self._taken(recorder)
        if recording is not None:
            shape.forward = recording
            if self._is_dynamic and self._trains:
                names = recording.returned[self._num_returned :]
                saved = [(name, each) for name, each in zip(names, results[self._num_returned :], strict=True) if name]
                self._saved = {name for name, _ in saved}
                self._by_saved[_saved_key_of(saved)] = shape
        return results

    def _record_backward(self, shape: ShapePlan, args: list[Any]) -> Sequence[Any]:
        recorder = GraphRecorder(self._modules["backward"])
        self.ordinary[RECORDED] += 1
        results = recorder.run(args)
        shape.backward = self._taken(recorder)
        return results

    def _taken(self, recorder: GraphRecorder) -> GraphRecording | None:
        if recorder.problem is not None:
            self._leave(recorder.problem)
            return None
        return recorder.recording

    def _lay_out(self, shape: ShapePlan) -> ArenaLayout | None:
        try:
            assert shape.forward is not None
            returned = self._num_returned if self._trains else len(shape.forward.returned)
            shape.layout = laid_out(shape.forward, returned, shape.backward, self.name)
        except Exception as error:
            self._leave(error)
        return shape.layout

    def _build(self, shape: ShapePlan, layout: ArenaLayout) -> Compiled | None:
        """The code of both graphs, with views of the arena, which is taken."""
        try:
            assert shape.forward is not None
            shape.views = Views(self.arena)
            forward = self._straight("forward", shape.forward, layout.forward, shape.views)
            run = forward.compiled()
            if shape.backward is not None:
                names = [node.name for node in shape.backward.nodes if node.op == "placeholder"]
                shape.saved = [
                    (names.index(str(shape.forward.returned[place])), at) for place, at in forward.kept_at.items()
                ]
                shape.run_backward = self._straight("backward", shape.backward, layout.backward, shape.views).compiled()
            shape.run_forward = run
        except Exception as error:
            shape.unbind()
            self._leave(error)
        return shape.run_forward

    def _straight(self, which: str, recording: GraphRecording, planned: Mapping[int, int], views: Views) -> Straight:
        returned = len(recording.returned) if not self._trains or which == "backward" else self._num_returned
        return Straight(self._modules[which], recording, planned, views, returned)

    def _lies_as_planned(self, shape: ShapePlan, args: Sequence[Any]) -> bool:
        at = self.arena.at
        return all(at(args[place]) == offset for place, offset in shape.saved)

    def _move_out(self) -> None:
        """Leaves for a separate arena, if others were met in this one."""
        if self._stays or self.arena.tenant in self._shapes.values():
            return
        self.arena = Arena()
        for shape in self._shapes.values():
            shape.unbind()

    def _leave(self, error: Exception) -> None:
        """Leaves the graphs to `aot_eager`: an error of planning never becomes the program's."""
        if not self.problem:
            self.problem = f"{type(error).__name__}: {error}".splitlines()[0]
            say(f"arena: {self.name} runs in ordinary memory after an error of planning ({self.problem})")


_numbers = itertools.count()
_known: weakref.WeakSet[Graphs] = weakref.WeakSet()


def known() -> list[Graphs]:
    """All compiled graphs that are in use."""
    return list(_known)


def references(args: list[Any], saved: Sequence[tuple[int, int]]) -> int:
    """Most references of Python to one of the saved tensors, that of the list of arguments included."""
    return max((sys.getrefcount(args[place]) for place, _ in saved), default=0)


_ALONE = references([object()], [(0, 0)])
"""References to something that only the list holds: what the program took from the graph itself has more."""


def is_dynamic(module: GraphModule) -> bool:
    """Whether a graph takes arguments of several shapes."""
    return any(_has_symbol(node.meta.get("val")) for node in module.graph.nodes if node.op == "placeholder")


def depends_on_values(module: GraphModule) -> bool:
    """Whether shapes in a graph depend on more than the shapes of its arguments."""
    return any(free_unbacked_symbols(node.meta["val"]) for node in module.graph.nodes if "val" in node.meta)


def _has_symbol(value: Any) -> bool:
    if isinstance(value, Tensor):
        return any(isinstance(each, SymInt) for each in (*value.shape, *value.stride()))
    return isinstance(value, (SymInt, SymBool, SymFloat))


def _key_of(args: Iterable[Any]) -> Key:
    return tuple(
        (tuple(each.shape), each.stride()) if isinstance(each, Tensor) else each
        for each in args
        if not isinstance(each, float)
    )


def _saved_key_of(saved: Iterable[tuple[str, Any]]) -> Key:
    return _key_of(value for _, value in sorted(saved, key=itemgetter(0)))

"""Straight-line Python for a graph whose planned buffers lie in an arena.

A call whose result is planned writes into a view that is there already; a view of something planned is one too, and is
not called at all. All else is called as `aot_eager` calls it, and dropped after its last use.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

import stoker.train.arena.torch_private as private
from stoker.train.arena.memory import Views
from stoker.train.arena.recording import GraphRecording, Leaf, last_uses, leaves_in
from stoker.train.arena.torch_private import Compiled
from stoker.train.arena.variants import WritingCall, writer_of


class Straight:
    """Writes the code of one graph.

    Args:
        module: the graph.
        recording: of a run of it.
        planned: its buffers that lie in the arena.
        views: tensors in the arena.
        kept: results from this one on that are saved for the backward pass: each run returns them as new tensors, whose
            end torch's count of holders shows.
    """

    def __init__(
        self, module: GraphModule, recording: GraphRecording, planned: Mapping[int, int], views: Views, kept: int = 0
    ) -> None:
        self._module, self._recording, self._planned = module, recording, planned
        self._views, self._kept = views, kept
        self._names: dict[str, Any] = {}
        self._ids: dict[int, str] = {}
        self._values: dict[str, Any] = {}  # of nodes that are not computed: tensors, or tuples of them
        self._lines: list[str] = []
        self.kept_at: dict[int, int] = {}
        """Bytes from the arena's start of each of them, by its place among the results."""

    def compiled(self) -> Compiled:
        """The function, which takes its arguments as a list and empties it."""
        arguments = [node.name for node in self._recording.nodes if node.op == "placeholder"]
        self._line(f"{', '.join(arguments)}{',' if arguments else ''} = args" if arguments else "pass")
        self._line("args.clear()")
        dying = last_uses(self._recording.nodes)
        for number, node in enumerate(self._recording.nodes):
            if node.op == "output":
                self._output(node)
                break
            self._statement(node)
            dead = [each.name for each in dying[number] if each.name not in self._values and each.op != "output"]
            if dead:
                self._line(f"{' = '.join(dead)} = None")
        source = "def run(args):\n" + "\n".join(f"    {line}" for line in self._lines) + "\n"
        scope: dict[str, Any] = dict(self._names)
        exec(compile(source, "<arena>", "exec"), scope)
        return private.boxed(cast("Compiled", scope["run"]))

    def _line(self, text: str) -> None:
        self._lines.append(text)

    def _statement(self, node: Node) -> None:
        leaves = list(leaves_in(self._recording.leaves.get(node.name)))
        lies_inside = bool(leaves) and all(leaf.buffer in self._planned for leaf in leaves)
        if node.op == "placeholder":
            if lies_inside:
                self._constant(node)
                self._line(f"{node.name} = None")
            return
        if node.op == "get_attr":
            found: Any = self._module
            for part in str(node.target).split("."):
                found = getattr(found, part)
            self._values[node.name] = found
            return
        makes = lies_inside and all(
            self._recording.nodes[self._recording.buffers[leaf.buffer].birth] is node for leaf in leaves
        )
        if makes:
            self._written(node, leaves)
        elif lies_inside and _is_view(node.target):
            self._constant(node)
        else:
            self._called(node)

    def _constant(self, node: Node) -> None:
        self._values[node.name] = self._tensors(self._recording.leaves[node.name])

    def _tensors(self, tree: Any) -> Any:
        if isinstance(tree, Leaf):
            return self._views.at(tree, self._planned[tree.buffer])
        return tuple(map(self._tensors, cast("tuple[Any, ...]", tree))) if isinstance(tree, tuple) else None

    def _written(self, node: Node, leaves: Sequence[Leaf]) -> None:
        self._constant(node)
        found = self._values[node.name]
        outs = cast("Sequence[Tensor]", found if isinstance(found, tuple) else (found,))
        write = writer_of(node.target)
        assert write is not None, "only what has a writer is planned"
        for call in write(node.args, node.kwargs, outs):
            self._line(self._call(call))

    def _called(self, node: Node) -> None:
        for leaf in leaves_in(self._recording.leaves.get(node.name)):
            made_here = leaf.buffer >= 0 and self._recording.nodes[self._recording.buffers[leaf.buffer].birth] is node
            assert not made_here or leaf.buffer not in self._planned, "all results of a call lie inside, or none"
        if node.op == "call_function":
            target = node.target
            function = private.direct(target) if private.is_operator(target) else target
            text = self._call(WritingCall(cast("Callable[..., Any]", function), node.args, node.kwargs))
        elif node.op == "call_module":
            text = self._call(WritingCall(self._module.get_submodule(str(node.target)), node.args, node.kwargs))
        else:
            owner, *others = node.args
            text = f"{self._text(owner)}.{node.target}{self._arguments(others, node.kwargs)}"
        self._line(f"{node.name} = {text}")

    def _output(self, node: Node) -> None:
        returned = node.args[0]
        parts: list[str] = []
        for place, each in enumerate(cast("Sequence[Any]", returned)):
            value = self._values.get(each.name) if isinstance(each, Node) else None
            leaf = self._recording.leaves.get(each.name) if isinstance(each, Node) else None
            if isinstance(value, Tensor) and isinstance(leaf, Leaf) and leaf.buffer in self._planned:
                assert place >= self._kept, "what is returned to the program lies outside"
                self.kept_at[place] = self._planned[leaf.buffer] + leaf.offset * value.element_size()
                parts.append(f"{self._text(value)}.detach()")
            else:
                parts.append(self._text(each))
        self._line(f"return ({', '.join(parts)}{',' if parts else ''})")

    def _call(self, call: WritingCall) -> str:
        return f"{self._name(call.function)}{self._arguments(call.args, call.kwargs)}"

    def _arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        words = [self._text(each) for each in args] + [f"{key}={self._text(each)}" for key, each in kwargs.items()]
        return f"({', '.join(words)})"

    def _text(self, value: Any) -> str:
        """An argument as Python writes it."""
        if isinstance(value, Node):
            return self._name(self._values[value.name]) if value.name in self._values else value.name
        if isinstance(value, WritingCall):
            return self._call(value)
        if isinstance(value, slice):
            ends = cast("slice[Any, Any, Any]", value)
            return f"slice({self._text(ends.start)}, {self._text(ends.stop)}, {self._text(ends.step)})"
        if isinstance(value, (list, tuple)):
            inside = ", ".join(self._text(each) for each in cast("Sequence[Any]", value))
            return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' if inside else ''})"
        if isinstance(value, dict):
            items = cast("dict[Any, Any]", value).items()
            return "{" + ", ".join(f"{self._text(key)}: {self._text(each)}" for key, each in items) + "}"
        if value is None or type(value) in (bool, int, str):
            return repr(value)
        return self._name(value)

    def _name(self, value: Any) -> str:
        """The name by which the code finds an object."""
        name = self._ids.get(id(value))
        if name is None:
            name = self._ids[id(value)] = f"_k{len(self._ids)}"
            if isinstance(value, Tensor):
                self._views.hold(value)  # a part of a result, for example
            self._names[name] = value
        return name


aten = torch.ops.aten
_UNMARKED = {aten._unsafe_view.default}
"""Views of which the schema does not say that they are."""


def _is_view(target: object) -> bool:
    """Whether a call only looks at what is there: it may be left out where its result is known."""
    if target is operator.getitem:
        return True
    if not private.is_operator(target):
        return False
    if target in _UNMARKED:
        return True
    arguments = private.arguments_of(target)
    return any(each.alias_info is not None for each in private.returns_of(target)) and not any(
        each.alias_info is not None and each.alias_info.is_write for each in arguments
    )

# pyright: reportUnknownArgumentType=false
# (torch.fx is untyped)
"""A recording as a ``torch.fx.GraphModule``: for people who want to print, run or transform it, and for tools."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from stoker.graph.dataflow import Argument, Form
from stoker.graph.functions import find
from stoker.graph.recording.common_graph import Recording
from stoker.graph.replay.stage import results_of


def to_module(recording: Recording, outputs: Iterable[int] | None = None) -> fx.GraphModule:
    """The stateless calls as a module that takes the batch's tensors in order.

    Args:
        recording: the recorded graph.
        outputs: numbers of the values to return (those of a cut's boundary, say); by default those that a stateful
            call, Python or later code of the program needs.

    Returns:
        A module without parameters; outside tensors are its buffers ``constant_0``, … Each node's ``meta`` holds
        ``seconds``, ``site`` and ``number``. It returns a tuple of tensors.
    """
    graph, picture = recording.graph, fx.Graph()
    root = torch.nn.Module()
    made: dict[int, fx.Node] = {}
    for value in graph.values:
        if value.producer is None:
            made[value.number] = picture.placeholder(f"leaf_{value.position}")

    def tree(argument: Argument) -> Any:
        payload: Any = argument.payload
        if argument.form is Form.VALUE:
            return made[payload]
        if argument.form is Form.CONSTANT:
            name = f"constant_{payload}"
            if not hasattr(root, name):
                root.register_buffer(name, recording.constants[payload])
            return picture.get_attr(name)
        if argument.form is Form.SCALAR:
            return payload
        parts = [tree(part) for part in payload]
        return parts if argument.form is Form.LIST else tuple(parts) if argument.form is Form.TUPLE else slice(*parts)

    for node in graph.nodes:
        if node.state or not node.outputs:
            continue
        arguments = tuple(tree(argument) for argument in node.arguments)
        keywords = {name: tree(argument) for name, argument in node.keywords}
        owner, _, accessor = node.function.rpartition(".")
        if accessor == "__get__":  # a property: fx has no name for its accessor
            call = picture.call_function(getattr, (*arguments[:1], owner.rpartition(".")[2]))
        else:
            call = picture.call_function(find(node.function), arguments, keywords)
        call.meta |= {"seconds": node.seconds, "site": node.site, "number": node.number}
        if node.container == "tensor":
            made[node.outputs[0]] = call
        else:
            for place, number in enumerate(node.outputs):
                made[number] = picture.call_function(_result, (call, place))
    wanted = _needed(recording) if outputs is None else list(outputs)
    picture.output(tuple(made[number] for number in wanted))
    return fx.GraphModule(root, picture, "StatelessPart")


def _result(results: Any, place: int) -> Any:
    """One of several results."""
    return results_of(results)[place]


def _needed(recording: Recording) -> list[int]:
    graph = recording.graph
    stateless = {number for node in graph.nodes if not node.state for number in node.outputs}
    used = {number for node in graph.nodes if node.state or not node.outputs for number in node.inputs}
    return sorted(stateless & (used | set(graph.kept)))

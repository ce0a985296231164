"""Leaves out what no output of an integer graph depends on."""

from __future__ import annotations

from stoker.deploy.ir import operations as op
from stoker.deploy.ir.graph import IntegerGraph


def pruned(graph: IntegerGraph) -> IntegerGraph:
    """The graph without operations, values and constants that no output depends on."""
    needed = {port.value for port in graph.outputs}
    kept: list[op.Operation] = []
    for each in reversed(graph.operations):
        if each.output in needed:
            kept.insert(0, each)
            needed.update(op.sources_of(each))
    needed.update(port.value for port in graph.inputs)
    constants = {name for each in kept for name in op.constants_of(each)}
    return IntegerGraph(
        inputs=graph.inputs, outputs=graph.outputs, operations=tuple(kept),
        values={name: value for name, value in graph.values.items() if name in needed},
        constants={name: array for name, array in graph.constants.items() if name in constants},
    )  # fmt: skip

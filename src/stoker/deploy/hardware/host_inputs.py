"""What a host sends a design some of whose tables it keeps: the rows that their numbers lead to, by the law."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from stoker.deploy.engines.law import NumpyEngine
from stoker.deploy.ir.graph import IntegerGraph, Integers
from stoker.deploy.ir.host_tables import device_graph, host_graph


def device_inputs(
    graph: IntegerGraph, tables: Collection[str], inputs: Mapping[str, Integers]
) -> dict[str, Integers]:  # fmt: skip
    """What the host sends a design: input values by name, rows of its tables among them.

    Args:
        graph: of the model.
        tables: layers whose tables stay on the host.
        inputs: the model's input values by name, each (samples, …).
    """
    if not tables:
        return dict(inputs)
    wanted = device_graph(graph, tables).inputs
    found = {port.value: inputs[port.value] for port in wanted if port.value in inputs}
    return found | NumpyEngine(host_graph(graph, tables)).integers(inputs)

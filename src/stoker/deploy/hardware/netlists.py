"""Whether what yosys makes of a design gives the law's outputs: of the whole design, or of each of its units alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec

from stoker.deploy.arithmetic.computing import compute
from stoker.deploy.hardware.host_inputs import device_inputs
from stoker.deploy.hardware.verification import PROCESSES, WAYS, in_ways
from stoker.deploy.ir.graph import IntegerGraph, Integers
from stoker.deploy.ir.host_tables import device_graph
from stoker.deploy.ir.operations import sources_of
from stoker.deploy.ir.values import ModelPort
from stoker.deploy.rtl.banks import BANKED
from stoker.deploy.rtl.flow import ThroughFlow
from stoker.deploy.rtl.folders import DESIGN
from stoker.deploy.rtl.folding import Folding, works_of
from stoker.deploy.rtl.generate import DesignDescription, design_files, read_design, write_design
from stoker.deploy.rtl.mapping import lower
from stoker.deploy.rtl.structure import DesignNode, End, Structure
from stoker.deploy.tools.devices import Fpga
from stoker.deploy.tools.netlists import netlist_simulator
from stoker.deploy.tools.running import tools_at_once, work_folder
from stoker.deploy.tools.simulation import simulate
from stoker.deploy.tools.synthesis import synthesise
from stoker.records.deploy.hardware import VerifiedNetlist, VerifiedUnit, VerifiedWay

_UNIT_WAYS = ("back to back", "pauses on both sides")
_UNIT_SAMPLES = 256
"""What comes in front of units is held for all of them at once."""


def verify_netlist(
    graph: IntegerGraph, design: Path, part: Fpga, inputs: Mapping[str, Integers], *, kept_in: Path | None = None,
    limit_s: float = 3600.0,
) -> VerifiedNetlist:  # fmt: skip
    """Synthesises a design, and compares every output of its cells with the law's, with and without pauses.

    Args:
        graph: that the design was made from.
        design: its folder.
        part: whose cells are used.
        inputs: input values by name, each (samples, …).
        kept_in: where results of tools are kept; the user's cache by default.
        limit_s: for each step.

    Raises:
        MissingExtraError: yosys or Verilator is not installed.
        ToolError: a tool fails or takes too long.
        ValueError: the folder holds no design.
    """
    netlist, _ = synthesise(design, part, kept_in, limit_s=limit_s)
    ways = simulated(graph, design, netlist, part, inputs, kept_in=kept_in, limit_s=limit_s)
    return VerifiedNetlist(device=part.name, ways=ways)


def simulated(
    graph: IntegerGraph, design: Path, netlist: Path, part: Fpga, inputs: Mapping[str, Integers], *,
    ways: Sequence[str] = tuple(WAYS), kept_in: Path | None = None, limit_s: float = 3600.0,
) -> tuple[VerifiedWay, ...]:  # fmt: skip
    """The same for a netlist that is there already."""
    description = read_design(design)
    program = netlist_simulator(netlist, description, part, kept_in, limit_s=limit_s)
    sent = device_inputs(graph, description.host_tables, inputs)
    run = partial(simulate, program, design, description, sent, limit_s=limit_s)
    return in_ways(run, graph, inputs, description, ways).ways


def verify_units(
    graph: IntegerGraph, structure: Structure, part: Fpga, inputs: Mapping[str, Integers], *,
    kept_in: Path | None = None, limit_s: float = 3600.0,
) -> VerifiedNetlist:  # fmt: skip
    """Synthesises each unit of a structure that computes, and gives it what the samples come to in front of it.

    Args:
        graph: that the structure was made from.
        structure: of the design.
        part: whose cells are used.
        inputs: input values by name, each (samples, …), of which the first 256 are taken.
        kept_in: where results of tools are kept; the user's cache by default.
        limit_s: for each step.

    Raises:
        MissingExtraError: yosys or Verilator is not installed.
        ToolError: a tool fails or takes too long.
    """
    known: dict[str, Integers] = {name: array[:_UNIT_SAMPLES] for name, array in inputs.items()}
    batch = len(next(iter(known.values())))
    for operation in graph.operations:
        sources = [known[name] for name in sources_of(operation)]
        known[operation.output] = compute(operation, sources, graph, batch)

    def verified(node: DesignNode) -> VerifiedUnit:
        alone = unit_graph(graph, node.layer)
        given = sources_of(alone.operations[0])
        with work_folder("unit") as made:
            folder = made / "design"
            write_design(unit_structure(structure, node, given), folder)
            netlist, taken = synthesise(folder, part, kept_in, limit_s=limit_s)
            ways = simulated(
                alone, folder, netlist, part, {name: known[name] for name in given}, ways=_UNIT_WAYS,
                kept_in=kept_in, limit_s=limit_s,
            )  # fmt: skip
        return VerifiedUnit(layer=node.layer, kind=node.module, luts=taken.luts, ways=ways)

    with tools_at_once(PROCESSES) as pool:
        computing = [node for node in structure.nodes.values() if node.module in BANKED or node.constant]
        return VerifiedNetlist(device=part.name, units=tuple(pool.map(verified, computing)))


def structure_of(graph: IntegerGraph, description: DesignDescription) -> Structure:
    """The structure that a design was written from.

    Raises:
        ValueError: the design is not what this version writes.
    """
    foldings = {name: Folding(*each) for name, each in description.foldings.items()}
    depths: tuple[Literal["full", "least"], ...] = ("full", "least")
    own = device_graph(graph, description.host_tables)
    for fifos in depths if {*foldings} == {*works_of(own)} else ():
        structure = lower(
            own, foldings, fifos=fifos, updatable=description.updates is not None, constant=description.constant,
            thresholds=description.thresholds or (),
        )  # fmt: skip
        structure = replace(structure, host_tables=description.host_tables)
        texts = design_files(structure, description.source)
        if msgspec.json.decode(texts[DESIGN], type=DesignDescription).digest == description.digest:
            return structure
    raise ValueError("`design` must be of this version; write it again with `stoker deploy rtl`")


def unit_graph(graph: IntegerGraph, layer: str) -> IntegerGraph:
    """The one operation of a layer, as a graph."""
    operation = graph.producer(layer)
    assert operation is not None, "a unit computes an operation's result"

    def port(name: str) -> ModelPort:
        shape = graph.values[name].shape
        return ModelPort(name=name, value=name, dtype="int64", shape=shape, order=tuple(range(len(shape))))

    names = dict.fromkeys(sources_of(operation))
    return IntegerGraph(
        inputs=tuple(port(name) for name in names), outputs=(port(layer),), values=graph.values,
        operations=(operation,), constants=graph.constants,
    )  # fmt: skip


def unit_structure(structure: Structure, node: DesignNode, values: Sequence[str]) -> Structure:
    """A unit between an input for each stream that it reads, and an output.

    Args:
        structure: that it is in.
        node: the unit.
        values: that its streams carry.
    """
    nodes: dict[str, DesignNode] = {}
    ends: dict[str, End] = {}
    sources: list[str] = []
    for name, value in zip(node.sources, values, strict=True):
        if value not in ends:
            stream = replace(structure.nodes[name].stream, name=f"in{len(ends)}")
            nodes[stream.name] = DesignNode(stream=stream, module="", sources=(), flow=ThroughFlow(0, 0), cycles=0)
            ends[value] = End(port=value, value=value, stream=stream.name)
        sources.append(ends[value].stream)
    alone = {"LAYER": 0} if node.constant else {}
    nodes[node.name] = replace(node, sources=tuple(sources), parameters={**node.parameters, **alone})
    outputs = (End(port=node.layer, value=node.layer, stream=node.name),)
    return Structure(nodes=nodes, inputs=tuple(ends.values()), outputs=outputs, updatable=structure.updatable)

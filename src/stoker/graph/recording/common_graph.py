"""Merges the traces of several steps into one graph: what they share is the candidate for the cut.

Calls are compared one by one in program order. If a scalar or an outside tensor differs between steps, the node is
state, and so is what depends on it. Where the calls themselves differ, the graph ends (control flow that depends on
values or time; the part before may still move).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch

from stoker.graph.arguments import differing, same_bits
from stoker.graph.dataflow import Argument, Form, Graph, Node, Value
from stoker.graph.numerics import Numerics, numerics
from stoker.graph.recording.recorder import Call, Trace, Use

_LEAST_S, _COMPARE_S, _COMPARED_BYTES_PER_S = 1e-8, 2e-6, 1e10
"""No call costs less than the first; comparing two tensors bit by bit: fixed cost, and bytes a second (one core)."""


@dataclass(slots=True, eq=False)
class Recording:
    """A graph that can be run: with functions by number of node, and outside tensors by number."""

    graph: Graph
    calls: dict[int, Call]
    constants: list[torch.Tensor]
    signature: tuple[Any, ...]
    paths: list[str]
    """Functions of the last recorded step's stateless calls, those that differ between steps included."""
    numerics: Numerics = field(default_factory=numerics)
    """The settings that decide how calls round, at its recording."""
    whole: bool = False
    """Whether its steps are never cut again."""
    revisions: int = 0
    """Times that a cut of it was chosen again after a finding."""

    @property
    def before_random(self) -> frozenset[int]:
        """The stateless calls up to the last random one: those that lead to it, and it itself."""
        drawing = [number for number, call in self.calls.items() if call.random >= 0]
        last = max((number for number in drawing if not self.graph.nodes[number].state), default=-1)
        return frozenset(n for n in self.calls if n <= last and not self.graph.nodes[n].state)

    def fits(self, trace: Trace) -> bool:
        """Whether a step makes the calls that were recorded."""
        return self.paths == [call.path for call in trace.calls]


def merge(traces: Sequence[Trace]) -> Recording:
    """One graph from at least one trace of steps on batches that look the same."""
    base = traces[-1]
    length = _common_length(base, traces)
    states = [_state(base, traces, k) for k in range(length)]
    step_s, busy_s = median(t.step_s for t in traces), median(t.busy_s for t in traces)
    graph = Graph(values=[], nodes=[], steps=len(traces), step_s=step_s, busy_s=busy_s)
    num_values = 1 + max((n for call in base.calls[:length] for n in call.outputs), default=base.num_leaves - 1)
    graph.values = base.values[:num_values]
    calls: dict[int, Call] = {}
    place: dict[int, int] = {}  # number of a call in the trace -> number of its node
    uses: dict[int, list[Use]] = {}
    for trace in traces:
        for use in trace.uses:
            uses.setdefault(min(use.after, length), []).append(use)
    for k in range(length + 1):
        seen: set[tuple[object, ...]] = set()
        for use in uses.get(k, ()):
            inputs = tuple(n for n in use.inputs if n < num_values)
            key = (use.path, inputs, use.site)
            if inputs and key not in seen:
                seen.add(key)
                graph.nodes.append(_use_node(len(graph.nodes), use.path, inputs, use.why, use.site))
        if k < length:
            call = base.calls[k]
            place[k] = len(graph.nodes)
            calls[len(graph.nodes)] = call
            seconds = median(trace.calls[k].seconds for trace in traces)
            comparing_s = _comparing_s(call, base.constants)  # moving the call would not save this
            graph.nodes.append(_node(len(graph.nodes), call, max(_LEAST_S, seconds - comparing_s), states[k]))
    for call in base.calls[length:]:  # these differ between steps; the training process needs their inputs
        inputs = tuple(n for n in _inputs(call) if n < num_values)
        if inputs:
            why = "the calls differ from step to step from here on"
            graph.nodes.append(_use_node(len(graph.nodes), call.path, inputs, why, call.site))
    graph.values = [_placed(value, place) for value in graph.values]
    spread_state(graph)
    graph.kept = _kept(graph, traces, num_values)
    return Recording(graph, calls, base.constants, base.signature, [call.path for call in base.calls])


def _comparing_s(call: Call, constants: Sequence[torch.Tensor]) -> float:
    """What it takes to compare a call's outside tensors in every step."""
    total = 0.0
    for tree in _trees(call).values():
        for leaf in tree.leaves():
            if leaf.form is Form.CONSTANT and isinstance(leaf.payload, int):
                total += _COMPARE_S + constants[leaf.payload].nbytes / _COMPARED_BYTES_PER_S
    return total


def _common_length(base: Trace, traces: Sequence[Trace]) -> int:
    length = min(len(trace.calls) for trace in traces)
    for k in range(length):
        if any(not _same_structure(base, trace, k) for trace in traces):
            return k
    return length


def _same_structure(base: Trace, trace: Trace, k: int) -> bool:
    ours, theirs = base.calls[k], trace.calls[k]
    if ours.path != theirs.path or ours.outputs != theirs.outputs or ours.ambient != theirs.ambient:
        return False
    if [base.values[n] for n in ours.outputs] != [trace.values[n] for n in theirs.outputs]:
        return False
    return _difference(base, trace, k) != ""


def _difference(base: Trace, trace: Trace, k: int) -> str | None:
    ours, theirs = _trees(base.calls[k]), _trees(trace.calls[k])
    if ours.keys() != theirs.keys():
        return ""

    def constants(one: int, other: int) -> bool:
        return same_bits(base.constants[one], trace.constants[other])

    findings = [differing(tree, theirs[name], constants) for name, tree in ours.items()]
    if "" in findings:
        return ""
    return next((finding for finding in findings if finding is not None), None)


def _state(base: Trace, traces: Sequence[Trace], k: int) -> str:
    for trace in traces:
        if trace is not base:
            found = _difference(base, trace, k)
            if found:
                return found
    return ""


def _trees(call: Call) -> dict[object, Argument]:
    return {**dict(enumerate(call.arguments)), **dict(call.keywords)}


def _inputs(call: Call) -> tuple[int, ...]:
    return _node(0, call, 0.0, "").inputs


def _node(number: int, call: Call, seconds: float, state: str) -> Node:
    return Node(
        number=number,
        function=call.path,
        arguments=call.arguments,
        keywords=call.keywords,
        outputs=call.outputs,
        container=call.container,
        is_view=call.is_view,
        seconds=seconds,
        site=call.site,
        state=state,
        random=call.random >= 0,
    )


def _use_node(number: int, path: str, inputs: tuple[int, ...], why: str, site: str) -> Node:
    arguments = tuple(Argument(Form.VALUE, n) for n in inputs)
    return Node(number, path, arguments, (), (), "none", False, 0.0, site, why)


def _placed(value: Value, place: dict[int, int]) -> Value:
    return value if value.producer is None else value._replace(producer=place[value.producer])


def spread_state(graph: Graph) -> None:
    """Marks as state what depends on state, or on leaves that are not plain CPU tensors."""
    for node in graph.nodes:
        if node.state or not node.outputs:
            continue
        for number in node.inputs:
            producer = graph.producer(number)
            if producer is not None and producer.state:
                node.state = f"it depends on `{producer.function.rpartition('.')[2]}`, which is not stateless"
                break


def _kept(graph: Graph, traces: Sequence[Trace], num_values: int) -> dict[int, str]:
    looked = [trace.alive for trace in traces[1:] or traces if trace.alive is not None]
    alive = frozenset[int]().union(*looked)
    return {n: "is still referred to after the last stateless call" for n in sorted(alive) if n < num_values}

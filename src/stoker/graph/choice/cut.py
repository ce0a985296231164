"""Chooses the calls of a recorded step that data workers run: the cut with the largest predicted saving.

Owns the prices, the value of a cut and the exact choice. :mod:`stoker.graph.choice.reasons` explains why a node stays;
recording the graph and running the cut are not its business.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Set
from dataclasses import dataclass, replace

from stoker.core.units import format_seconds
from stoker.graph.choice import reasons
from stoker.graph.choice.cost_model import CutAccounts, Prices
from stoker.graph.choice.min_cut import SINK, SOURCE, Network
from stoker.graph.dataflow import Cut, Graph

__all__ = ["NO_TIME", "Prices", "choose", "value_of"]

NO_TIME = "would be worth moving if data workers had the time: steps would wait for them"
"""Why a call stays if data workers have no time for it."""

_DEARER = (0.3, 0.6)
"""Higher prices of a second of worker time: calls that are costly to send for what they save drop out first."""


def choose(graph: Graph, prices: Prices) -> Cut:
    """The cut of the highest value; of several, the one that moves least. Empty if none saves enough.

    Source: project selection (Picard 1976) as a minimum cut. Nodes on the source's side move. Each tensor to send is a
    further vertex, so that it is paid once however many staying nodes use it.
    """
    ledger = CutAccounts(graph, prices)
    moved, worth = _shortest(ledger)
    saved_s = ledger.shorter_s(moved)
    least_s = max(prices.min_saving_s, prices.min_saving_frac * graph.step_s)
    few: frozenset[int] = frozenset()
    if moved and saved_s < least_s:
        few = moved if ledger.saved_ns(moved) / 1e9 < least_s else few
        moved = frozenset[int]()
    words = f"is worth moving, but all such nodes save {format_seconds(saved_s)} a step"
    stayed = {
        **reasons.reasons(ledger, moved),
        **dict.fromkeys(worth - moved, NO_TIME),
        **dict.fromkeys(few, f"{words}; a cut must save at least {format_seconds(least_s)}"),
    }
    saved_s = saved_s if moved else 0.0
    boundary = ledger.sent(moved)
    return Cut(
        moved=moved,
        boundary=boundary,
        saved_s=saved_s,
        worker_s=math.fsum(graph.nodes[number].seconds for number in moved),
        boundary_bytes=sum(graph.values[value].size_bytes for value in boundary),
        stayed=dict(sorted(stayed.items())),
    )


def _shortest(ledger: CutAccounts) -> tuple[frozenset[int], frozenset[int]]:
    """The cut with the shortest steps, and the best one if data workers had unlimited time.

    Where steps would wait for data workers, higher prices of their time yield cuts that take less of it.
    """
    worth = _minimum_cut(ledger)
    if ledger.shorter_s(worth) >= ledger.saved_ns(worth) / 1e9:
        return worth, worth
    dearer = [
        _minimum_cut(CutAccounts(ledger.graph, replace(ledger.prices, worker_s_price=price)))
        for price in _DEARER
        if price > ledger.prices.worker_s_price
    ]
    return max((worth, *dearer), key=ledger.shorter_s), worth


def value_of(graph: Graph, moved: Iterable[int], prices: Prices) -> float:
    """Predicted value of moving some nodes, in seconds of the training process.

    Args:
        graph: The recorded step.
        moved: Numbers of the nodes, including all that they depend on.
        prices: What moving costs.

    Returns:
        Seconds saved in a step, less the price of the data workers' time. Below 0 if the cut makes the program slower.

    Raises:
        ValueError: One of the nodes cannot move, or depends on one that is not moved.
    """
    ledger, chosen = CutAccounts(graph, prices), frozenset(moved)
    _check(ledger, chosen)
    return ledger.value_ns(chosen) / 1e9


def _check(ledger: CutAccounts, moved: Set[int]) -> None:
    for number in sorted(moved):
        if number not in ledger.movable:
            why = ledger.obstacles.get(number) or ledger.graph.nodes[number].state
            raise ValueError(f"`moved` must hold nodes that can move; node {number} cannot: {why}")
        for producer in ledger.producers[number]:
            if producer not in moved:
                raise ValueError(
                    f"`moved` must hold all that its nodes depend on; node {number} depends on node {producer}"
                )


@dataclass(frozen=True, slots=True)
class _Plan:
    """The network under construction."""

    network: Network
    nodes: dict[int, int]
    """Vertex of each node that can move."""
    never: int
    """Capacity of an edge that no minimum cut crosses."""


def _minimum_cut(ledger: CutAccounts) -> frozenset[int]:
    network = Network()
    weights = {number: ledger.gain_ns(number) - ledger.price_ns(number) for number in sorted(ledger.movable)}
    # Moving nothing cuts only the edges from the source, so a minimum cut never costs more than these.
    never = 1 + sum(weight for weight in weights.values() if weight > 0)
    plan = _Plan(network, {number: network.vertex() for number in weights}, never)
    for number, weight in weights.items():
        vertex = plan.nodes[number]
        if weight > 0:
            network.edge(SOURCE, vertex, weight)
        else:
            network.edge(vertex, SINK, -weight)
        for producer in ledger.producers[number]:
            network.edge(vertex, plan.nodes[producer], never)
    _add_tensors(ledger, plan)
    side = network.source_side()
    return frozenset(number for number, vertex in plan.nodes.items() if vertex in side)


def _add_tensors(ledger: CutAccounts, plan: _Plan) -> None:
    """Adds a vertex for each tensor that may be sent; on the sink's side, the training process has it."""
    tensors: dict[int, int] = {}
    for number, vertex in plan.nodes.items():
        if ledger.graph.nodes[number].is_view:
            continue
        for value in ledger.graph.nodes[number].outputs:
            tensors[value] = _tensor(ledger, plan, value)
            plan.network.edge(vertex, tensors[value], ledger.send_ns(value))
    for number, vertex in plan.nodes.items():
        base = ledger.base_of_view(number)
        # The training process makes views of tensors that it has, so moving such a view saves nothing.
        if base is not None:
            plan.network.edge(vertex, tensors[base], ledger.gain_ns(number))


def _tensor(ledger: CutAccounts, plan: _Plan, value: int) -> int:
    takers = ledger.takers[value]
    if value in ledger.kept or not takers <= ledger.movable:
        return SINK
    vertex = plan.network.vertex()
    for taker in takers:
        plan.network.edge(vertex, plan.nodes[taker], plan.never)
    return vertex

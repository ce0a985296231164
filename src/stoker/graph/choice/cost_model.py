"""The cost model of cuts: what moving a set of nodes saves and costs, in whole nanoseconds.

A moved node's output is *needed* in the training process if it is kept there, or if a node that stays uses it or a view
of it. Views are never sent: where the base is available, the training process makes the view itself, for about the cost
of verifying the call, so such a view counts as free. The base of a view is the base of its first tensor argument; a
leaf of the batch is always available.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Set
from dataclasses import dataclass

from stoker.graph.dataflow import Graph


@dataclass(frozen=True, kw_only=True)
class Prices:
    """The costs of moving calls to data workers."""

    bytes_per_s: float
    """Measured bandwidth of the transport in use."""
    tensor_s: float = 12e-6
    """Fixed cost of each sent tensor in the training process: rebuilding it as a view of a slot."""
    verify_s: float = 3e-6
    """Cost of verifying a moved node's call in the training process."""
    worker_s_price: float = 0.05
    """Price of a second of data-worker time, in seconds of the training process."""
    item_s: float = 0.0
    """Data-worker time of an item without the cut."""
    workers: float = math.inf
    """Data workers that can work at once; with infinitely many, steps never wait for them."""
    waits_overlap: bool = False
    """Whether items that wait get more data workers, so that only processor time counts."""
    min_saving_s: float = 0.0
    """Least saving per step for which a cut is made."""
    min_saving_frac: float = 0.02
    """The same as a share of the step, where its time is known; in [0, 1]."""

    def __post_init__(self) -> None:
        if not self.bytes_per_s > 0.0:
            raise ValueError(f"`bytes_per_s` must be positive, got {self.bytes_per_s}")
        if not self.workers > 0.0:
            raise ValueError(f"`workers` must be positive, got {self.workers}")
        for name in ("tensor_s", "verify_s", "worker_s_price", "item_s", "min_saving_s"):
            value: float = getattr(self, name)
            if not 0.0 <= value < math.inf:
                raise ValueError(f"`{name}` must be a number not below 0, got {value}")
        if not 0.0 <= self.min_saving_frac <= 1.0:
            raise ValueError(f"`min_saving_frac` must be in [0, 1], got {self.min_saving_frac}")


class CutAccounts:
    """Savings and costs of cuts of one graph at given prices."""

    def __init__(self, graph: Graph, prices: Prices) -> None:
        self.graph = graph
        self.prices = prices
        self._inputs = [node.inputs for node in graph.nodes]
        self.producers = [self._producers(inputs) for inputs in self._inputs]
        """For each node, the nodes that made its arguments."""
        self.bases = self._bases()
        """For each value, the value whose memory it shares (mostly itself); None: always available, like a leaf."""
        self.takers, self.kept = self._uses()
        self.obstacles = self._obstacles()
        """Stateless nodes that can never move, and why."""
        self.movable = frozenset(
            node.number for node in graph.nodes if not node.state and node.number not in self.obstacles
        )

    def gain_ns(self, number: int) -> int:
        """What the training process saves if a node moves and, for a view, its base is not sent."""
        saved = _ns(self.graph.nodes[number].seconds) - _ns(self.prices.verify_s)
        if not self.graph.nodes[number].is_view:
            return saved
        return 0 if self.base_of_view(number) is None else max(0, saved)

    def price_ns(self, number: int) -> int:
        """Price of the data-worker time of a node."""
        node = self.graph.nodes[number]
        if node.is_view and self.base_of_view(number) is None:
            return 0
        return _ns(self.prices.worker_s_price * node.seconds)

    def send_ns(self, value: int) -> int:
        """Cost of sending a value with each batch."""
        return _ns(self.prices.tensor_s + self.graph.values[value].size_bytes / self.prices.bytes_per_s)

    def base_of_view(self, number: int) -> int | None:
        """The value that a view shares memory with; None for other nodes, and if that is always available."""
        node = self.graph.nodes[number]
        return self.bases[node.outputs[0]] if node.is_view and node.outputs else None

    def needed(self, value: int, moved: Set[int]) -> bool:
        """Whether the training process needs a value, directly or through a view."""
        return value in self.kept or not self.takers[value] <= moved

    def sent(self, moved: Set[int]) -> tuple[int, ...]:
        """The values that are sent when these nodes move, in program order."""
        return tuple(value for value in self.made(moved) if self.needed(value, moved))

    def made(self, numbers: Iterable[int]) -> list[int]:
        """Outputs of these nodes that are not views, in program order."""
        return [
            value for n in sorted(numbers) if not self.graph.nodes[n].is_view for value in self.graph.nodes[n].outputs
        ]

    def read(self, numbers: Iterable[int]) -> set[int]:
        """Bases of the arguments of these nodes, without those that are always available."""
        bases = {self.bases[value] for number in numbers for value in self._inputs[number]}
        return {base for base in bases if base is not None}

    def calls_ns(self, numbers: Iterable[int], moved: Set[int]) -> int:
        """What not running some of the moved nodes saves, before the cost of sending."""
        total = 0
        for number in numbers:
            base = self.base_of_view(number)
            if base is None or not self.needed(base, moved):
                total += self.gain_ns(number)
        return total

    def saved_ns(self, moved: Set[int]) -> int:
        """What the training process saves per step; below 0 if moving makes it slower."""
        return self.calls_ns(moved, moved) - sum(self.send_ns(value) for value in self.sent(moved))

    def shorter_s(self, moved: Set[int]) -> float:
        """Predicted reduction of the program's time from batch to batch.

        Less than what the training process saves if the data workers, with their additional calls and copies, become
        the bottleneck.
        """
        saved_s, step_s = self.saved_ns(moved) / 1e9, self.graph.step_s
        if not moved or not step_s:
            return saved_s
        calls_s = math.fsum(self.graph.nodes[number].seconds for number in moved)
        if self.prices.waits_overlap and self.graph.busy_s:
            calls_s = min(calls_s, self.graph.busy_s)  # an upper bound: not measured per call
        copied_s = sum(self.graph.values[value].size_bytes for value in self.sent(moved)) / self.prices.bytes_per_s
        before_s = self.prices.item_s / self.prices.workers
        after_s = (self.prices.item_s + calls_s + copied_s) / self.prices.workers
        return max(step_s, before_s) - max(step_s - saved_s, after_s)

    def value_ns(self, moved: Set[int]) -> int:
        """What a step saves, less the price of the data workers' time."""
        return self.saved_ns(moved) - sum(self.price_ns(number) for number in moved)

    def _producers(self, inputs: tuple[int, ...]) -> tuple[int, ...]:
        found = {self.graph.values[value].producer: None for value in inputs}
        return tuple(number for number in found if number is not None)

    def _bases(self) -> list[int | None]:
        bases: list[int | None] = [None] * len(self.graph.values)
        for node, inputs in zip(self.graph.nodes, self._inputs, strict=True):
            # A view without a tensor argument is one of a constant, which the training process has.
            into = bases[inputs[0]] if node.is_view and inputs else None
            for value in node.outputs:
                bases[value] = into if node.is_view else value
        return bases

    def _uses(self) -> tuple[list[frozenset[int]], frozenset[int]]:
        """For each value, the nodes that take it or a view of it; and the values kept directly or through a view."""
        takers: list[set[int]] = [set() for _ in self.graph.values]
        kept = set(self.graph.kept)
        for node in reversed(self.graph.nodes):
            for value in self._inputs[node.number]:
                takers[value].add(node.number)
                if node.is_view:
                    # To make a view, all its arguments must be available, not only its base.
                    takers[value].update(*(takers[output] for output in node.outputs))
                    if not kept.isdisjoint(node.outputs):
                        kept.add(value)
        return [frozenset(numbers) for numbers in takers], frozenset(kept)

    def _obstacles(self) -> dict[int, str]:
        found: dict[int, str] = {}
        for node in self.graph.nodes:
            if node.state:
                continue
            touched = [self.graph.values[value] for value in (*self._inputs[node.number], *node.outputs)]
            elsewhere = [value.device for value in touched if value.device != "cpu"]
            before = [n for n in self.producers[node.number] if self.graph.nodes[n].state or n in found]
            if elsewhere:
                found[node.number] = f"runs on {elsewhere[-1]}"
            elif not node.outputs:
                found[node.number] = "makes no tensor: its result is used in the training process at once"
            elif before:
                found[node.number] = f"depends on a node that stays: {self.name(before[0])}"
        return found

    def name(self, number: int) -> str:
        """Short name of a node's function."""
        return self.graph.nodes[number].function.rpartition(".")[2]


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)

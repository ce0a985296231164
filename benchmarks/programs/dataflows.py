"""Dataflow graphs for benchmarks and tests of the cut: by hand or drawn at random; and every cut of a small one.

Times and sizes are given, not measured. Nothing here needs torch.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import combinations

from stoker.graph.dataflow import Argument, Form, Graph, Node, Value

FEW = 12
"""Nodes that can move, at most, for trying every cut."""


class Dataflow:
    """Builds a graph call by call; calls and leaves return the numbers of values."""

    def __init__(self, step_s: float = 0.0) -> None:
        self.graph = Graph([], [], steps=4, step_s=step_s)

    def leaf(self, size_bytes: int = 1000) -> int:
        """A tensor of the batch."""
        position = sum(value.producer is None for value in self.graph.values)
        return self._value(None, position, size_bytes, "cpu")

    def call(
        self,
        function: str,
        *inputs: int,
        seconds: float,
        size_bytes: int | Sequence[int] = 1000,
        view: bool = False,
        state: str = "",
        device: str = "cpu",
    ) -> int:
        """A call; the number of its first result, after which the others follow (none with ``size_bytes=()``)."""
        number, first = len(self.graph.nodes), len(self.graph.values)
        sizes = [size_bytes] if isinstance(size_bytes, int) else list(size_bytes)
        outputs = tuple(self._value(number, position, size, device) for position, size in enumerate(sizes))
        self.graph.nodes.append(
            Node(
                number=number,
                function=f"torch.{function}",
                arguments=tuple(Argument(Form.VALUE, value) for value in inputs),
                keywords=(),
                outputs=outputs,
                container="tensor" if len(outputs) == 1 else "tuple",
                is_view=view,
                seconds=seconds,
                site=f"train.py:{number + 1}",
                state=state,
            )
        )
        return first

    def model(self, *inputs: int) -> int:
        """A call that depends on state, as everything after a parameter does."""
        return self.call("linear", *inputs, seconds=1e-3, state="takes a parameter")

    def keep(self, value: int) -> None:
        """The training process needs this value itself."""
        self.graph.kept[value] = "read into Python"

    def _value(self, producer: int | None, position: int, size_bytes: int, device: str) -> int:
        number = len(self.graph.values)
        shape = (max(size_bytes // 4, 1),)
        self.graph.values.append(Value(number, producer, position, shape, (1,), "float32", device, size_bytes))
        return number


def drawn(seed: int, nodes: int) -> Graph:
    """A random graph: chains and joins, views, state, dead ends, several results, growing and shrinking sizes."""
    draw = random.Random(seed)
    flow = Dataflow()
    usable = [flow.leaf(draw.choice((100, 10_000, 1_000_000))) for _ in range(draw.randint(1, 3))]
    tainted: set[int] = set()
    for _ in range(nodes):
        clean = [value for value in usable if value not in tainted]
        pool = clean if draw.random() < 0.9 else usable
        # Mostly recent values, so that chains come about.
        inputs = {draw.choice(pool[-4:] if draw.random() < 0.7 else pool) for _ in range(draw.choice((1, 1, 2)))}
        stateful = not tainted.isdisjoint(inputs) or draw.random() < 0.05
        view = draw.random() < 0.25
        sizes = [int(10 ** draw.uniform(0, 7)) for _ in range(draw.choice((1, 1, 1, 2)))]
        seconds = draw.uniform(1e-6, 5e-6) if view else 10 ** draw.uniform(-6, -2)
        state = "takes a parameter" if stateful else ""
        first = flow.call("op", *sorted(inputs), seconds=seconds, size_bytes=sizes, view=view, state=state)
        results = range(first, first + len(sizes))
        usable += results
        tainted |= set(results) if stateful else set()
    for value in range(len(flow.graph.values)):
        if draw.random() < 0.1:
            flow.keep(value)
    flow.model(usable[-1])
    return flow.graph


def enumerate_cuts(graph: Graph) -> Iterator[frozenset[int]]:
    """Every set of stateless nodes on the CPU that is closed under predecessors, the empty one included."""
    free = [node for node in graph.nodes if not node.state and node.outputs and _on_cpu(graph, node)]
    if len(free) > FEW:
        raise ValueError(f"`graph` must have at most {FEW} nodes that could move, got {len(free)}")
    before = {
        node.number: {producer for value in node.inputs if (producer := graph.values[value].producer) is not None}
        for node in free
    }
    for count in range(len(free) + 1):
        for chosen in combinations(before, count):
            moved = frozenset(chosen)
            if all(before[number] <= moved for number in moved):
                yield moved


def _on_cpu(graph: Graph, node: Node) -> bool:
    return all(graph.values[value].device == "cpu" for value in (*node.inputs, *node.outputs))

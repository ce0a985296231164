"""The law as an engine: each operation in NumPy, in the graph's order."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from stoker.deploy.arithmetic.computing import compute
from stoker.deploy.engines.ends import Arrays, taken
from stoker.deploy.engines.engine import IntegerEngine
from stoker.deploy.ir.graph import IntegerGraph, Integers
from stoker.deploy.ir.operations import sources_of


class NumpyEngine(IntegerEngine):
    """Executes a graph as the arithmetic defines it; what other engines are compared with."""

    name = "numpy"

    def __init__(self, graph: IntegerGraph) -> None:
        super().__init__(graph)
        self._last = {name: at for at, each in enumerate(graph.operations) for name in sources_of(each)}
        """The last operation that reads a value."""
        self._kept = {port.value for port in graph.outputs}

    def integers(self, values: Mapping[str, Integers]) -> dict[str, Integers]:
        """As every engine's; values are dropped when nothing reads them any more."""
        known = dict(values)
        batch = len(next(iter(values.values())))
        for at, operation in enumerate(self.graph.operations):
            sources = sources_of(operation)
            known[operation.output] = compute(operation, [known[name] for name in sources], self.graph, batch)
            for name in sources:
                if self._last[name] == at and name not in self._kept:
                    known.pop(name, None)
        return {name: np.ascontiguousarray(known[name], np.int32) for name in self._kept}

    def all_values(self, arrays: Arrays) -> dict[str, Integers]:
        """Every value of the graph for a caller's arrays, by name."""
        known = taken(self.graph, arrays)
        batch = len(next(iter(known.values())))
        for operation in self.graph.operations:
            sources = [known[name] for name in sources_of(operation)]
            known[operation.output] = compute(operation, sources, self.graph, batch)
        return known

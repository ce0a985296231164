"""What all executions share: a plain call from a caller's arrays to a caller's arrays, and one on whole numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from stoker.deploy.engines.ends import Arrays, given, taken
from stoker.deploy.ir.checking import checked
from stoker.deploy.ir.graph import IntegerGraph, Integers
from stoker.deploy.ir.values import ModelPort


class IntegerEngine(ABC):
    """An execution of a graph.

    Args:
        graph: any; it is checked.

    Attributes:
        graph: what it executes.
        name: how it is called in reports.

    Raises:
        ValueError: the graph is not sound.
    """

    name = ""

    def __init__(self, graph: IntegerGraph) -> None:
        self.graph = checked(graph)

    @property
    def inputs(self) -> tuple[ModelPort, ...]:
        """Names, dtypes and shapes of what a call takes."""
        return self.graph.inputs

    @property
    def outputs(self) -> tuple[ModelPort, ...]:
        """Names, dtypes and shapes of what a call returns."""
        return self.graph.outputs

    def __call__(self, arrays: Arrays) -> dict[str, Integers]:
        """The model's outputs.

        Args:
            arrays: by input name, each (batch, *shape) of the port's dtype.

        Raises:
            ValueError: an input is missing, unknown, of another shape or dtype, or out of range.
        """
        return given(self.graph, self.integers(taken(self.graph, arrays)))

    @abstractmethod
    def integers(self, values: Mapping[str, Integers]) -> dict[str, Integers]:
        """The graph's output values from its input values, by value name: (batch, …) whole numbers in their ranges."""

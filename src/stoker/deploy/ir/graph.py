"""The graph: values by name, operations in the order in which they may run, constants, and the model's ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from stoker.deploy.ir.operations import Operation, sources_of
from stoker.deploy.ir.values import IntegerValue, ModelPort

Integers = NDArray[Any]
"""An array of a whole-number dtype."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerGraph:
    """An integer model. :func:`stoker.deploy.ir.checking.checked` says whether it is sound.

    Attributes:
        inputs: in the order of the model's arguments.
        outputs: in the order of its results.
        values: every edge, by name, the inputs among them.
        operations: each after those whose results it reads.
        constants: weights, biases, multipliers and tables, by name; never written to.
    """

    inputs: tuple[ModelPort, ...]
    outputs: tuple[ModelPort, ...]
    values: Mapping[str, IntegerValue]
    operations: tuple[Operation, ...]
    constants: Mapping[str, Integers]

    def value(self, port: ModelPort) -> IntegerValue:
        """The graph's value of an input or output."""
        return self.values[port.value]

    def producer(self, name: str) -> Operation | None:
        """The operation that a value comes from; None for an input."""
        return next((each for each in self.operations if each.output == name), None)

    def consumers(self, name: str) -> tuple[Operation, ...]:
        """The operations that read a value."""
        return tuple(each for each in self.operations if name in sources_of(each))

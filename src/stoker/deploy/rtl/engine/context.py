"""What the compilation of each operation shares: values and their buffers, scales, and instructions over them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from stoker.deploy.ir import operations as op
from stoker.deploy.ir.graph import IntegerGraph, Integers
from stoker.deploy.ir.values import IntegerValue
from stoker.deploy.rtl.engine.drafts import Draft, Drafting, ImagePlace, Loop
from stoker.deploy.rtl.engine.image import ImageBuilder
from stoker.deploy.rtl.engine.instructions import First, Instruction
from stoker.deploy.rtl.engine.shape import NUMBER_BITS, SUM_BITS, EngineShape

_LOW, _HIGH = -(1 << 17), (1 << 17) - 1
"""Ends of a clamp that holds no number back."""


class ProgramContext:
    """A program in the making.

    Args:
        graph: sound, as ``checked`` says.
        shape: of the engine.
    """

    def __init__(self, graph: IntegerGraph, shape: EngineShape) -> None:
        self.graph, self.shape, self.lanes = graph, shape, shape.lanes
        self.drafting, self.image = Drafting(shape), ImageBuilder(shape)
        self.operation = ""
        """Value of the graph that is being computed."""
        self.bordered: dict[tuple[str, tuple[int, int, int, int], int], ImagePlace] = {}
        """Images with a border, by value, padding and the number that it is of."""
        self._buffers: dict[str, str] = {}

    def value(self, name: str) -> IntegerValue:
        """A value of the graph.

        Raises:
            ValueError: the engine has no place for its numbers.
        """
        found = self.graph.values[name]
        low, high = (-(1 << 15), (1 << 15) - 1) if found.low < 0 else (0, (1 << NUMBER_BITS) - 1)
        if not low <= found.low <= found.high <= high:
            raise ValueError(
                f"`{name}` must have numbers of {NUMBER_BITS} bits on an engine, got {found.low} to {found.high}"
            )
        return found

    def buffer(self, name: str) -> str:
        """The buffer of a value, new if it has none yet."""
        if name not in self._buffers:
            self._buffers[name] = self.drafting.buffer(name, self.value(name).elements)
        return self._buffers[name]

    def scratch(self, size: int) -> str:
        """A buffer for what only this operation needs."""
        return self.drafting.buffer(f"{self.operation}, between", size)

    def alias(self, name: str, source: str) -> None:
        """Makes a value another name of a value's buffer."""
        self._buffers[name] = self.buffer(source)

    def blocks(self, count: int, *, a: int | None = None, b: int = 0, c: int | None = None, p: int = 0) -> Loop:
        """The loop through the words of a row of so many numbers; a and c move by words unless told otherwise."""
        lanes = self.lanes
        return Loop(-(-count // lanes), lanes if a is None else a, b, lanes if c is None else c, p, blocks=True)

    def nest(
        self, *, a: str | None = None, b: str | None = None, c: str | None = None, pair: str | None = None,
        outer: Sequence[Loop] = (), inner: Sequence[Loop] = (), run: int | None = None,
        start: tuple[int, int] = (0, 0), weights: int = 0, law: dict[str, int] | None = None, **fields: Any,
    ) -> None:  # fmt: skip
        """Adds an instruction.

        Args:
            a: buffer of the first operand.
            b: buffer of the second operand, where that is in data memory.
            c: buffer of the result.
            pair: buffer whose numbers are added to those of ``a``.
            outer: loops of results, outermost first.
            inner: loops that reduce, outermost first.
            run: numbers that the loop through blocks goes through; None: one number a result.
            start: numbers from the beginning of a and of c on.
            weights: where the array's begin.
            law: fields of the requantiser; by default numbers stay as they are.
            fields: others of the instruction.
        """
        sizes = {"full": 1, "tail": 1} if run is None else {"full": self.lanes, "tail": (run - 1) % self.lanes + 1}
        given: dict[str, Any] = sizes | (law or self.unchanged()) | fields
        made = Instruction(a=start[0], b=weights, c=start[1], **given)
        self.drafting.drafts.append(
            Draft(
                operation=self.operation, fields=made, outer=tuple(outer), inner=tuple(inner), a=a, b=b, c=c, pair=pair
            )
        )

    def moved(
        self, source: str, target: str, outer: Sequence[Loop], run: int | None, *, a: int = 0, c: int = 0,
        first: First = First.OWN,
    ) -> None:  # fmt: skip
        """Copies numbers between buffers, from and to so many numbers on."""
        # Bits are copied: with or without a sign, they are the same.
        self.nest(a=source, c=target, outer=outer, run=run, start=(a, c), first=first)

    def unchanged(self, bias: int = 0) -> dict[str, int]:
        """Fields of a requantiser that leaves numbers as they are, but for a number that is added."""
        return {"p": self._scale([bias], [1]), "low": _LOW, "high": _HIGH}

    def law(
        self, by: op.Requantiser, *, channels: int, biases: Integers | int = 0, groups: int = 1, pixels: int = 1
    ) -> tuple[dict[str, int], int]:  # fmt: skip
        """Fields of a requantiser, and by how much its scales move from a word of channels to the next.

        Args:
            by: of the operation.
            channels: of the result; each may have its own bias and factor.
            biases: one, or by channel.
            groups: parts of the channels, each with words to itself.
            pixels: of all channels that have words together, one after another.
        """
        factors = np.ones(1, np.int64) if by.multiplier is None else self.graph.constants[by.multiplier].ravel()
        start = np.asarray(biases, np.int64).ravel()
        fields = {"shift": by.shift, "zero": by.zero_point, "low": by.low, "high": by.high}
        if len(factors) == len(start) == 1:
            return {"p": self._scale(start, factors), **fields}, 0
        each = channels // groups
        wide = [np.tile(np.broadcast_to(array, channels).reshape(groups, each), pixels) for array in (start, factors)]
        words = [
            [part[at : at + self.lanes] for part in array for at in range(0, each * pixels, self.lanes)]
            for array in wide
        ]  # fmt: skip
        return {"p": self.image.add_scales(words[0], words[1]), **fields}, 1

    def by_place(self, by: op.Requantiser, bias: int) -> dict[str, int]:
        """Fields of a requantiser with a separate factor for each place, in words that follow each other."""
        assert by.multiplier is not None
        factors = self.graph.constants[by.multiplier].ravel()
        words = [np.full(self.lanes, bias)] * len(factors), [np.full(self.lanes, each) for each in factors]
        fields = {"shift": by.shift, "zero": by.zero_point, "low": by.low, "high": by.high}
        return {"p": self.image.add_scales(*words), **fields}

    def unsigned(self, name: str) -> bool:
        """Whether a value's numbers have 16 bits and no sign."""
        return self.value(name).high >= 1 << (NUMBER_BITS - 1)

    def check_sums(self, name: str, bits: int) -> None:
        """Raises where sums need more bits than the engine's accumulators have.

        Raises:
            ValueError: they do.
        """
        if bits > SUM_BITS:
            raise ValueError(f"`{name}`: sums must fit {SUM_BITS} bits on an engine, need {bits}; use fewer bits")

    def _scale(self, biases: Any, factors: Any) -> int:
        """One word, the same in all lanes."""
        return self.image.add_scales([np.repeat(biases, self.lanes)], [np.repeat(factors, self.lanes)])


def strides_of(shape: Sequence[int]) -> list[int]:
    """By how many numbers each axis of an array moves."""
    return [math.prod(shape[at + 1 :]) for at in range(len(shape))]

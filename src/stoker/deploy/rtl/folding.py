"""How much of a layer is computed at once: multipliers of its unit, and cycles, by closed form.

A unit of PE results at a time, ``lanes`` channels and ``taps`` taps of each has ``PE * lanes * taps`` multipliers; in a
cycle it does as many of the layer's products. The names PE and SIMD are FINN's (Umuroglu et al., 2017); there SIMD is
within one tap, here it may span several.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from stoker.deploy.ir import operations as op
from stoker.deploy.ir.graph import IntegerGraph, Integers
from stoker.deploy.rtl.geometry import Windows, windows_of

MATRIX = (op.Linear, op.Convolution)


@dataclass(frozen=True, slots=True, order=True)
class Folding:
    """What a unit computes in a cycle.

    Attributes:
        pe: results at a time; a divisor of the output channels of a group (of all channels where depthwise).
        lanes: channels of a tap at a time; equal to ``pe`` where depthwise.
        taps: of a window at a time: a divisor of a kernel's row, or whole rows that divide the kernel.
    """

    pe: int = 1
    lanes: int = 1
    taps: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWork:
    """What a dense layer or a convolution computes.

    Attributes:
        windows: that it looks at.
        outputs: output channels.
        groups: of channels.
    """

    windows: Windows
    outputs: int
    groups: int = 1

    @property
    def depthwise(self) -> bool:
        """Whether each channel is a separate group."""
        return self.groups > 1 and self.groups == self.windows.channels == self.outputs

    @property
    def products(self) -> int:
        """Products of a sample."""
        windows = self.windows
        return windows.images * math.prod(windows.out) * windows.taps * windows.channels // self.groups * self.outputs

    def foldings(self) -> Iterator[Folding]:
        """All that are possible."""
        for taps in tap_choices(self.windows.kernel):
            if self.depthwise:
                for pe in divisors(self.outputs):
                    yield Folding(pe, pe, taps)
                continue
            for pe in divisors(self.outputs // self.groups):
                for lanes in divisors(self.windows.channels // self.groups):
                    yield Folding(pe, lanes, taps)

    def multipliers(self, folding: Folding) -> int:
        """Multipliers of the array; those of the requantiser are not counted."""
        return folding.pe * folding.taps * (1 if self.depthwise else folding.lanes)

    def cycles(self, folding: Folding) -> int:
        """Cycles of a sample, when nothing makes the unit wait: it never pauses between two."""
        return self.products // self.multipliers(folding)

    def sum_beats(self, folding: Folding) -> int:
        """Cycles in which one sum of products is made."""
        within = self.windows.taps // folding.taps
        return within if self.depthwise else within * (self.windows.channels // self.groups // folding.lanes)

    def result_beats(self, folding: Folding) -> int:
        """Words in which PE results leave: as many as fit into the cycles of a sum, so that requantisers are few."""
        return max(beats for beats in divisors(folding.pe) if beats <= self.sum_beats(folding))


def work_of(operation: op.Operation, graph: IntegerGraph) -> LayerWork | None:
    """The work of an operation's multiplier array; None for those that have none.

    Raises:
        ValueError: the operation has no such unit.
    """
    if not isinstance(operation, MATRIX):
        return None
    windows = windows_of(operation, graph.values, graph.constants)
    outputs = len(_weight(operation, graph.constants))
    groups = operation.groups if isinstance(operation, op.Convolution) else 1
    return LayerWork(windows=windows, outputs=outputs, groups=groups)


def works_of(graph: IntegerGraph) -> dict[str, LayerWork]:
    """By the name of their result, in order."""
    found = ((operation.output, work_of(operation, graph)) for operation in graph.operations)
    return {name: work for name, work in found if work is not None}


def cheapest(work: LayerWork, cycles: int) -> Folding:
    """The folding with the fewest multipliers that takes at most so many cycles; among equals the fewest lanes.

    Raises:
        ValueError: none is as fast.
    """
    fast = [folding for folding in work.foldings() if work.cycles(folding) <= cycles]
    if not fast:
        best = min(work.cycles(folding) for folding in work.foldings())
        raise ValueError(f"`cycles` must be at least {best} for a layer of {work.products} products, got {cycles}")
    # Narrow words are cheap, and so are few copies of the line buffer.
    return min(fast, key=lambda each: (work.multipliers(each), each.taps, each.lanes + each.pe, each))


def constant_folding(name: str, work: LayerWork, results: int | None = None) -> Folding:
    """The folding of a layer whose weights are part of the circuit: whole windows at once.

    Args:
        name: of the layer.
        work: of the layer.
        results: that leave in a cycle; all of a window by default.

    Raises:
        ValueError: the layer has groups, or the results of a window are not a multiple of it.
    """
    if work.groups > 1:
        raise ValueError(f"`constant`: {name} must have one group of channels, got {work.groups}; give it a `--fold`")
    found = work.outputs if results is None else results
    if found < 1 or work.outputs % found:
        raise ValueError(f"`constant`: results of {name} must divide its {work.outputs} channels, got {found}")
    return Folding(found, work.windows.channels, work.windows.taps)


def balanced(works: Mapping[str, LayerWork], multipliers: int) -> dict[str, Folding]:
    """The foldings with the least cycles of the slowest unit within a number of multipliers, and the fewest of these.

    Layers do not meet: for a bound on cycles, each has its own cheapest folding. So the bound is searched for alone.

    Raises:
        ValueError: there are more layers than multipliers.
    """
    if len(works) > multipliers:
        raise ValueError(f"`multipliers` must be at least {len(works)}, one a layer, got {multipliers}")
    bounds = sorted({work.cycles(folding) for work in works.values() for folding in work.foldings()})
    slowest = max((min(work.cycles(folding) for folding in work.foldings()) for work in works.values()), default=0)
    bounds = [bound for bound in bounds if bound >= slowest]
    low, high = 0, len(bounds) - 1
    while low < high:
        middle = (low + high) // 2
        if total_multipliers(works, folded(works, bounds[middle])) <= multipliers:
            high = middle
        else:
            low = middle + 1
    return folded(works, bounds[low]) if bounds else {}


def folded(works: Mapping[str, LayerWork], cycles: int) -> dict[str, Folding]:
    """The cheapest folding of each layer for a number of cycles a sample.

    Raises:
        ValueError: a layer can not be as fast.
    """
    return {name: cheapest(work, cycles) for name, work in works.items()}


def total_multipliers(works: Mapping[str, LayerWork], foldings: Mapping[str, Folding]) -> int:
    """Multipliers of all arrays."""
    return sum(work.multipliers(foldings[name]) for name, work in works.items())


def tap_choices(kernel: tuple[int, int]) -> Sequence[int]:
    """How many taps may be read at a time: divisors of a row of the kernel, then whole rows that divide it."""
    rows, columns = kernel
    return [*divisors(columns), *(columns * step for step in divisors(rows) if step > 1)]


def divisors(number: int) -> list[int]:
    """Ascending."""
    return [each for each in range(1, number + 1) if number % each == 0]


def _weight(operation: op.Linear | op.Convolution, constants: Mapping[str, Integers]) -> Integers:
    return constants[operation.weight]

"""Products of a vector with a constant matrix, by additions of shifted numbers that outputs share; pure.

Weights are written in signed digits, of which a third are not 0 on average (Reitwiesner, 1960). A pair of digits that
occurs in several places is added once: the pair that saves most bits of adders goes first, until none occurs twice
(two-term sharing, Hartley, 1996; weighted by bits as in Sun et al., 2024). What is left of each output is added level
by level. No addition exceeds a given level, so latency is a choice.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Pattern = tuple[int, int, int, bool]
"""``low ± (high << shift)``: two values, the shift, whether it is a difference."""


@dataclass(frozen=True, slots=True)
class SharedSum:
    """An addition: ``left ± (right << shift)``.

    Attributes:
        left: a value: an input, a constant, or an addition before, in this order.
        right: the same.
        shift: of the right one.
        minus: whether it is subtracted.
        level: of adders: inputs are 0.
        low: the least number that it can be.
        high: the largest.
    """

    left: int
    right: int
    shift: int
    minus: bool
    level: int
    low: int
    high: int

    @property
    def adder_bits(self) -> int:
        """Bits that an adder works on: those of the left value below the shift pass by it."""
        return max(1, width(self.low, self.high) - self.shift)


@dataclass(frozen=True, slots=True)
class OutputTerm:
    """What an output is: ``± (value << shift)``; without a value, 0."""

    value: int | None
    shift: int = 0
    minus: bool = False


@dataclass(frozen=True, slots=True)
class ConstantSums:
    """Additions by which a constant matrix is multiplied.

    Attributes:
        inputs: their ends, least and largest.
        constants: numbers that are added, such as biases.
        sums: in an order in which each comes after those that it reads.
        outputs: one for each row of the matrix.
    """

    inputs: tuple[tuple[int, int], ...]
    constants: tuple[int, ...]
    sums: tuple[SharedSum, ...]
    outputs: tuple[OutputTerm, ...]

    @property
    def given(self) -> int:
        """Values that are no additions: inputs, then constants."""
        return len(self.inputs) + len(self.constants)

    @property
    def levels(self) -> int:
        """The most adders between an input and an output."""
        return max((each.level for each in self.sums), default=0)

    @property
    def adder_bits(self) -> int:
        """The sum over all additions."""
        return sum(each.adder_bits for each in self.sums)

    @property
    def subtracted_bits(self) -> int:
        """Bits of values that are subtracted, each value once a level; constants are written as they are needed."""
        values = {
            (each.right, each.level): each.adder_bits
            for each in self.sums
            if each.minus and not len(self.inputs) <= each.right < self.given
        }
        return sum(min(width(*self.ends(value)), bits) for (value, _), bits in values.items())

    def ends(self, value: int) -> tuple[int, int]:
        """The least and the largest number that a value can be."""
        if value < len(self.inputs):
            return self.inputs[value]
        if value < self.given:
            constant = self.constants[value - len(self.inputs)]
            return constant, constant
        found = self.sums[value - self.given]
        return found.low, found.high

    def level(self, value: int) -> int:
        """The level of a value: 0 for what is given."""
        return 0 if value < self.given else self.sums[value - self.given].level

    def computed(self, inputs: NDArray[np.int64]) -> NDArray[np.int64]:
        """What they give: (samples, inputs) to (samples, outputs)."""
        values = [*inputs.T, *(np.full(len(inputs), each, np.int64) for each in self.constants)]
        for each in self.sums:
            right = values[each.right] << each.shift
            values.append(values[each.left] - right if each.minus else values[each.left] + right)
        zero = np.zeros(len(inputs), np.int64)
        found = [zero if each.value is None else values[each.value] << each.shift for each in self.outputs]
        return np.stack([-a if each.minus else a for a, each in zip(found, self.outputs, strict=True)], axis=1)


def constant_sums(
    weights: NDArray[np.int64], inputs: Sequence[tuple[int, int]], biases: Sequence[int] = (), *,
    levels: int | None = None,
) -> ConstantSums:  # fmt: skip
    """Additions for a matrix. With biases, no output is shifted or negative.

    Args:
        weights: (outputs, inputs).
        inputs: the least and the largest number of each.
        biases: of the outputs; without any, products alone.
        levels: of adders at most; the fewest that each output alone needs are always allowed. Any number by default.
    """
    values = [_Value(0, low, high) for low, high in (*inputs, *((bias, bias) for bias in biases))]
    work = _Sharing(values, levels)
    for output, row in enumerate(weights):
        own = [(len(inputs) + output, 0, False)] if biases else []
        products = [(at, shift, minus) for at, each in enumerate(row) for shift, minus in signed_digits(int(each))]
        work.add_output(products + own)
    work.share()
    outputs = tuple(work.added(at) for at in range(len(weights)))
    return ConstantSums(tuple(inputs), tuple(biases), tuple(work.sums), outputs)


def signed_digits(number: int) -> Iterator[tuple[int, bool]]:
    """Shifts of the digits that are not 0, lowest first, and whether each is -1: no two are neighbours."""
    shift = 0
    while number:
        if number & 1:
            minus = number & 2 != 0
            yield shift, minus
            number += 1 if minus else -1
        number >>= 1
        shift += 1


def width(low: int, high: int) -> int:
    """Bits of a number between two ends, with a sign where one is negative."""
    if low >= 0:
        return max(1, high.bit_length())
    return 1 + max(max(high, 0).bit_length(), (-low - 1).bit_length())


@dataclass(frozen=True, slots=True)
class _Value:
    level: int
    low: int
    high: int


Digits = dict[int, dict[int, bool]]
"""Whether each digit is negative, by value and shift."""


@dataclass
class _Sharing:
    """Outputs as digits of values, and the additions so far."""

    values: list[_Value]
    levels: int | None
    sums: list[SharedSum] = field(default_factory=list[SharedSum])
    outputs: list[Digits] = field(default_factory=list[Digits])
    loads: list[int] = field(default_factory=list[int])
    """For each output, the sum of ``2 ** level`` over its digits; its least depth is the logarithm, rounded up."""
    limits: list[int] = field(default_factory=list[int])
    counts: Counter[Pattern] = field(default_factory=Counter[Pattern])
    waiting: list[tuple[int, Pattern]] = field(default_factory=list[tuple[int, Pattern]])
    """Patterns, the one that saves most first; counts may have changed since."""

    def add_output(self, digits: Sequence[tuple[int, int, bool]]) -> None:
        at = len(self.outputs)
        self.outputs.append({})
        self.loads.append(0)
        for value, shift, minus in digits:
            self._put(at, value, shift, minus)
        least = max(0, self.loads[at] - 1).bit_length()
        self.limits.append(1 << 62 if self.levels is None else 1 << max(least, self.levels))

    def share(self) -> None:
        """Adds what occurs twice or more, once."""
        self.waiting = [(-self._saved(pattern), pattern) for pattern, count in self.counts.items() if count > 1]
        heapq.heapify(self.waiting)
        while self.waiting:
            saved, pattern = heapq.heappop(self.waiting)
            if self.counts[pattern] < 2:
                continue
            if -saved != (now := self._saved(pattern)):
                heapq.heappush(self.waiting, (-now, pattern))
                continue
            places = list(self._places(pattern))
            if len(places) < 2:
                continue  # digits overlap, or an output would become too deep
            value = self._sum(*pattern)
            low, high, shift, _ = pattern
            touched: set[Pattern] = set()
            for at, place in places:
                minus = self.outputs[at][low][place]
                self._take(at, low, place)
                self._take(at, high, place + shift)
                touched |= self._put(at, value, place, minus)
            for each in touched:
                if self.counts[each] > 1:
                    heapq.heappush(self.waiting, (-self._saved(each), each))

    def added(self, at: int) -> OutputTerm:
        """What is left of an output, added: those of the lowest level first, which keeps it shallow."""
        terms = [
            (made.level, width(made.low, made.high) + shift, value, shift, minus)
            for value, digits in self.outputs[at].items()
            for made in (self.values[value],)
            for shift, minus in digits.items()
        ]
        heapq.heapify(terms)
        while len(terms) > 1:
            _, _, first, place, minus = heapq.heappop(terms)
            _, _, second, other, sign = heapq.heappop(terms)
            # Of two at one place the positive comes first, and so stays the sum.
            if (other, sign, second) < (place, minus, first):
                first, place, minus, second, other, sign = second, other, sign, first, place, minus
            value = self._sum(first, second, other - place, minus != sign)
            made = self.values[value]
            heapq.heappush(terms, (made.level, width(made.low, made.high) + place, value, place, minus))
        if not terms:
            return OutputTerm(None)
        _, _, value, shift, minus = terms[0]
        return OutputTerm(value, shift, minus)

    def _saved(self, pattern: Pattern) -> int:
        """Bits of adders that sharing a pattern saves: those where both numbers are."""
        low, high, shift, _ = pattern
        one, two = self.values[low], self.values[high]
        both = min(width(one.low, one.high) - shift, width(two.low, two.high))
        return (self.counts[pattern] - 1) * max(1, both)

    def _places(self, pattern: Pattern) -> Iterator[tuple[int, int]]:
        """Outputs and shifts where a pattern occurs, no digit twice, none that would make an output too deep."""
        low, high, shift, minus = pattern
        one, two = self.values[low].level, self.values[high].level
        more = (2 << max(one, two)) - (1 << one) - (1 << two)
        for at, digits in enumerate(self.outputs):
            if low not in digits or high not in digits:
                continue
            taken: set[int] = set()
            load = self.loads[at]
            for place in sorted(digits[low]):
                if place + shift not in digits[high] or (low == high and place in taken):
                    continue
                if (digits[low][place] != digits[high][place + shift]) != minus or load + more > self.limits[at]:
                    continue
                load += more
                taken.add(place + shift)
                yield at, place

    def _sum(self, left: int, right: int, shift: int, minus: bool) -> int:
        one, two = self.values[left], self.values[right]
        low, high = (-two.high, -two.low) if minus else (two.low, two.high)
        made = _Value(1 + max(one.level, two.level), one.low + (low << shift), one.high + (high << shift))
        self.values.append(made)
        self.sums.append(SharedSum(left, right, shift, minus, made.level, made.low, made.high))
        return len(self.values) - 1

    def _put(self, at: int, value: int, shift: int, minus: bool) -> set[Pattern]:
        """Adds a digit to an output; returns the patterns that occur once more."""
        found = self._patterns(at, value, shift, minus)
        self.counts.update(found)
        self.outputs[at].setdefault(value, {})[shift] = minus
        self.loads[at] += 1 << self.values[value].level
        return set(found)

    def _take(self, at: int, value: int, shift: int) -> None:
        digits = self.outputs[at]
        minus = digits[value].pop(shift)
        if not digits[value]:
            del digits[value]
        self.loads[at] -= 1 << self.values[value].level
        self.counts.subtract(self._patterns(at, value, shift, minus))

    def _patterns(self, at: int, value: int, shift: int, minus: bool) -> list[Pattern]:
        """Those of a digit with each other digit of an output."""
        return [
            (value, other, place - shift, minus != sign)
            if (shift, value) < (place, other)
            else (other, value, shift - place, minus != sign)
            for other, digits in self.outputs[at].items()
            for place, sign in digits.items()
        ]

"""The instructions' law: executes a program step by step on whole numbers, as the netlist does."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stoker.deploy.ir.graph import Integers
from stoker.deploy.rtl.engine.ends import with_sign
from stoker.deploy.rtl.engine.image import ModelImage
from stoker.deploy.rtl.engine.instructions import First, Instruction, InstructionKind, Lookup, Second
from stoker.deploy.rtl.engine.shape import NUMBER_BITS

Whole = NDArray[np.int64]


class ProgramMachine:
    """An engine with a model.

    Args:
        image: of the model.
    """

    def __init__(self, image: ModelImage) -> None:
        self.image, self.lanes = image, image.shape.lanes
        # Numbers that nothing has written are arbitrary: no result may depend on them.
        self.data: Whole = np.random.default_rng(0).integers(0, 1 << NUMBER_BITS, image.shape.data_words * self.lanes)
        self.tables: Whole = np.concatenate([*image.tables, np.zeros(self.lanes, np.int64)]).astype(np.int64)

    def run(self, beats: Sequence[Integers]) -> list[Whole]:
        """The words that leave for those of a sample that enter, lanes that hold nothing as they come."""
        self._entering, self._leaving = [np.asarray(beat, np.int64) for beat in beats], list[Whole]()
        for instruction in self.image.instructions:
            match instruction.kind:
                case InstructionKind.SHARES:
                    self._shares(instruction)
                case InstructionKind.NORMAL:
                    self._normal(instruction)
                case _:
                    self._nest(instruction)
        return self._leaving

    def _nest(self, by: Instruction) -> None:
        acc = np.zeros(self.lanes, np.int64)
        inside = math.prod(level.count for level in by.levels[: by.reduce])
        for at in range(by.steps):
            rounds, rest = list[int](), at
            for level in by.levels:
                rounds.append(rest % level.count)
                rest //= level.count
            a, b, c, p = (
                getattr(by, name) + sum(r * getattr(level, name) for r, level in zip(rounds, by.levels, strict=True))
                for name in "abcp"
            )
            short = by.tail_level < len(rounds) and rounds[by.tail_level] == by.levels[by.tail_level].count - 1
            count = by.tail if short else by.full
            if by.kind == InstructionKind.INPUT:
                self._write(c, self._entering.pop(0), count)
                continue
            acc = self._step(by, acc, a, b, first=at % inside == 0)
            if (at + 1) % inside == 0:
                result = self._law(by, acc, p)
                if by.kind == InstructionKind.OUTPUT:
                    self._leaving.append(result)
                else:
                    self._write(c, result, count)

    def _step(self, by: Instruction, acc: Whole, a: int, b: int, *, first: bool) -> Whole:
        x = self._read(a, by.unsigned_a)
        if by.array:
            weight = self.image.weights[b].astype(np.int64)
            return (0 if first else acc) + weight @ x
        left = {First.OWN: x - by.zero_a, First.LANE_0: np.repeat(x[0] - by.zero_a, self.lanes)}.get(
            by.first, np.ones(self.lanes, np.int64)
        )
        if by.largest:
            return left if first else np.maximum(acc, left)
        right = np.full(self.lanes, int(by.second == Second.ONE), np.int64)
        if by.second == Second.DATA:
            right = self._read(b, by.unsigned_b) - by.zero_b
        if by.second == Second.TABLE:
            right = self._entries(by, x[0], b)
        return (0 if first else acc) + left * right

    def _entries(self, by: Instruction, x: int, b: int) -> Whole:
        """A word of table memory, from a number of it on."""
        index, start = 0, by.table + b
        if by.lookup == Lookup.NUMBER:
            index = x - by.zero_a
        if by.lookup == Lookup.DISTANCE:
            index, start = int(self._read(b, by.unsigned_b)[0]) - x, by.table
        at = start + index * by.row
        word = at // self.lanes * self.lanes
        return np.roll(self.tables[word : word + self.lanes], word - at)

    def _law(self, by: Instruction, acc: Whole, p: int) -> Whole:
        word = np.array(self.image.scales[p], np.int64)
        total = (acc + word[: self.lanes]) * word[self.lanes :]
        total = ((total + ((1 << by.shift) >> 1)) >> by.shift) + by.zero
        return np.clip(total, by.low, by.high)

    def _shares(self, by: Instruction) -> None:
        for row in range(by.rows):
            x = [int(each) for each in self._row(by, row)]
            total = sum(x)
            for at, each in enumerate(x):
                top = (1 << by.share_bits) - 1
                share = ((each << by.share_bits) + total // 2) // total if total else top
                self._put(by.c + row * by.size + at, min(share, top))

    def _normal(self, by: Instruction) -> None:
        for row in range(by.rows):
            x = [int(each) for each in self._row(by, row)]
            centred = [by.size * each - sum(x) for each in x]
            squares = sum(each * each for each in centred) + by.epsilon
            root = max(1, math.isqrt((squares << (2 * by.root_bits)) // by.size))
            reciprocal = (1 << by.reciprocal_bits) // root
            half = (1 << by.normal_shift) >> 1
            for at, each in enumerate(centred):
                self._put(by.c + row * by.size + at, (each * reciprocal + half) >> by.normal_shift)

    def _row(self, by: Instruction, row: int) -> Whole:
        start = by.a + row * by.size
        return with_sign(self.data[start : start + by.size], by.unsigned_a)

    def _read(self, at: int, unsigned: bool) -> Whole:
        return with_sign(self.data[np.arange(at, at + self.lanes) % len(self.data)], unsigned)

    def _write(self, at: int, numbers: Whole, count: int) -> None:
        for lane in range(count):
            self._put(at + lane, int(numbers[lane]))

    def _put(self, at: int, number: int) -> None:
        self.data[at] = number & ((1 << NUMBER_BITS) - 1)

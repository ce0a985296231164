"""The images of an engine's memories, and how they are sent over its bus."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from stoker.deploy.ir.graph import Integers
from stoker.deploy.rtl.engine.instructions import Instruction, encoded
from stoker.deploy.rtl.engine.shape import FACTOR_BITS, FETCH_WORDS, OPERAND_BITS, SUM_BITS, EngineShape
from stoker.deploy.rtl.memories import packed

_BUS_BYTES = 4
REGISTERS = {"digest": 0x2C, "address": 0x30, "data": 0x34, "switch": 0x38}
"""Where a model is loaded: its digest, the memory (bits 28 on) and word that come next, what they hold, the switch."""


@dataclass(slots=True)
class ImageBuilder:
    """Collects what the memories of a model begin with; equal words of scales are kept once.

    Args:
        shape: of the engine.
    """

    shape: EngineShape
    weights: list[Integers] = field(default_factory=list[Integers])
    """(columns, rows) of each word."""
    tables: list[Integers] = field(default_factory=list[Integers])
    """(lanes,) of each word."""
    scales: list[tuple[int, ...]] = field(default_factory=list[tuple[int, ...]])
    """Biases of all lanes, then factors."""

    def add_weights(self, words: Integers) -> int:
        """Words of (columns, rows); the number of the first."""
        self.weights.extend(words)
        return len(self.weights) - len(words)

    def add_table(self, numbers: Integers) -> int:
        """Rows of numbers, each from a word's first lane on; where the first one is, in numbers."""
        lanes = self.shape.lanes
        rows = numbers.reshape(-1, numbers.shape[-1]).astype(np.int64)
        wide = np.pad(rows, ((0, 0), (0, -rows.shape[1] % lanes))).reshape(-1, lanes)
        self.tables.extend(wide)
        return (len(self.tables) - len(wide)) * lanes

    def add_scales(self, biases: Sequence[Integers], factors: Sequence[Integers]) -> int:
        """Words of biases and factors that follow each other; the number of the first."""
        words = [
            (*_laned(bias, self.shape.lanes), *_laned(factor, self.shape.lanes))
            for bias, factor in zip(biases, factors, strict=True)
        ]  # fmt: skip
        for at in range(len(self.scales) - len(words) + 1):
            if self.scales[at : at + len(words)] == words:
                return at
        self.scales.extend(words)
        return len(self.scales) - len(words)


def _laned(numbers: Integers, lanes: int) -> list[int]:
    found = [int(each) for each in numbers]
    return found + [0] * (lanes - len(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelImage:
    """A model as an engine has it.

    Attributes:
        shape: of the engine.
        instructions: of the program.
        operations: the value of the graph that each instruction helps to compute.
        weights: (columns, rows) of each word.
        tables: (lanes,) of each word.
        scales: biases of all lanes, then factors, of each word.
        data_words: of data memory that the program uses.
    """

    shape: EngineShape
    instructions: tuple[Instruction, ...]
    operations: tuple[str, ...]
    weights: tuple[Integers, ...]
    tables: tuple[Integers, ...]
    scales: tuple[tuple[int, ...], ...]
    data_words: int

    @property
    def memories(self) -> dict[str, tuple[int, ...]]:
        """The words of each memory that is loaded, in the order of their numbers on the bus."""
        lanes = self.shape.lanes
        code = [word for each in self.instructions for word in encoded(each)]
        return {
            "instructions": tuple(_joined(code[at : at + FETCH_WORDS], 32) for at in range(0, len(code), FETCH_WORDS)),
            "weights": packed(np.stack(self.weights).reshape(len(self.weights), -1), 8).words if self.weights else (),
            "tables": packed(np.stack(self.tables), OPERAND_BITS).words if self.tables else (),
            "scales": tuple(
                _joined(word[:lanes], SUM_BITS) | _joined(word[lanes:], FACTOR_BITS) << (lanes * SUM_BITS)
                for word in self.scales
            ),
        }  # fmt: skip

    @property
    def bytes(self) -> int:
        """Bytes of the bus that hold the model."""
        return sum(self.shape.slices[name] * len(words) for name, words in self.memories.items()) * _BUS_BYTES

    def transfers(self) -> Iterator[tuple[int, int]]:
        """Registers and words to write, one after another, to load the model into the free banks and switch to it."""
        memories = self.memories
        data: list[tuple[int, int]] = []
        for number, (name, words) in enumerate(memories.items()):
            data.append((REGISTERS["address"], number << 28))
            for word in words:
                slices = range(self.shape.slices[name])
                data.extend((REGISTERS["data"], (word >> (32 * at)) & 0xFFFFFFFF) for at in slices)
        found = hashlib.sha256(repr(data).encode()).digest()
        yield REGISTERS["digest"], int.from_bytes(found[:4], "big")
        yield from data
        yield REGISTERS["switch"], 1


def _joined(numbers: Sequence[int], bits: int) -> int:
    return sum((number & ((1 << bits) - 1)) << (bits * at) for at, number in enumerate(numbers))

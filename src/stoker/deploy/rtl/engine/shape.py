"""How large an engine is: what the netlist's parameters are, and what a program must fit into."""

from __future__ import annotations

import msgspec

NUMBER_BITS = 16
"""Width of a number in data memory and on the streams."""
OPERAND_BITS = 18
"""Width of a lane's operands, signed: what a multiplier of 18 x 18 takes; and of a number in table memory."""
ARRAY_BITS = 9
"""Width of the array's operands, signed: numbers of 8 bits with or without sign."""
SUM_BITS = 35
"""Width of an accumulator: with a factor of 16 bits it takes two multipliers of 18 x 18."""
FACTOR_BITS = 16
ADDRESS_BITS = 20
COUNT_BITS = 16
BUS_BITS = 32
LEVELS = 7
"""Loops of an instruction."""
INSTRUCTION_WORDS = 32
FETCH_WORDS = 4
"""Words of an instruction that are read in a cycle."""
LANES = (2, 4, 8, 16)
"""Sizes that an array can have."""


class EngineShape(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of an engine's parts. Memories hold two models at a time, each as much as is said here.

    Raises:
        ValueError: a size is none that the netlist can have.
    """

    lanes: int = 8
    """Numbers of a word; the array has as many rows and columns."""
    data_words: int = 1024
    """Words of data memory, which is shared by both models: a word has a number of 16 bits for each lane."""
    weight_words: int = 512
    """Words of weights: 8 bits for each row and column of the array."""
    table_words: int = 1024
    """Words of tables: 18 bits for each lane."""
    scale_words: int = 256
    """Words of biases and factors: 35 and 16 bits for each lane."""
    instructions: int = 128

    def __post_init__(self) -> None:
        if self.lanes not in LANES:
            raise ValueError(f"`lanes` must be one of {', '.join(map(str, LANES))}, got {self.lanes}")
        for name in ("data_words", "weight_words", "table_words", "scale_words", "instructions"):
            found = getattr(self, name)
            if found < 2 or found & (found - 1):
                raise ValueError(f"`{name}` must be a power of two from 2 on, got {found}")
            if found * self.lanes > 1 << ADDRESS_BITS:
                raise ValueError(f"`{name}` must be at most {(1 << ADDRESS_BITS) // self.lanes}, got {found}")

    @property
    def slices(self) -> dict[str, int]:
        """Words of the bus in a word of each memory that is loaded, in the order of their numbers on the bus."""
        return {
            "instructions": FETCH_WORDS,
            "weights": -(-8 * self.lanes * self.lanes // BUS_BITS),
            "tables": -(-OPERAND_BITS * self.lanes // BUS_BITS),
            "scales": -(-(SUM_BITS + FACTOR_BITS) * self.lanes // BUS_BITS),
        }

    @property
    def words(self) -> dict[str, int]:
        """Words of each memory that is loaded, for one model."""
        return {
            "instructions": self.instructions * INSTRUCTION_WORDS // FETCH_WORDS, "weights": self.weight_words,
            "tables": self.table_words, "scales": self.scale_words,
        }  # fmt: skip

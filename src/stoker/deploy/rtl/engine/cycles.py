"""Cycles of a program, by closed form: steps, and what an instruction takes besides."""

from __future__ import annotations

from stoker.deploy.rtl.engine.image import ModelImage
from stoker.deploy.rtl.engine.instructions import Instruction, Kind

_FETCHED = 10
"""An instruction's fetch and its first addresses."""
_ENTERED = 1
_LAW = 18
"""From a step of lanes to its written result."""
_ROW = 4
"""From a row's end to the next one's first address."""
_PASS = 7
_DIVIDED = 64 + 32 + 64
_SHARE = 20
"""Of a number: its read, 17 bits of a quotient, its result."""


def instruction_cycles(instruction: Instruction, lanes: int) -> int:
    """Cycles from an instruction's fetch to the next one's.

    Args:
        instruction: any.
        lanes: of the engine.
    """
    match instruction.kind:
        case Kind.SHARES:
            return _FETCHED + _ENTERED + instruction.rows * (instruction.size * (1 + _SHARE) + _ROW)
        case Kind.NORMAL:
            return _FETCHED + _ENTERED + instruction.rows * (3 * (instruction.size + _PASS) + _DIVIDED)
        case Kind.INPUT:
            return _FETCHED + _ENTERED + instruction.steps
        case _:
            tree = (lanes.bit_length() - 1) if instruction.array else 0
            return _FETCHED + instruction.steps + _LAW + tree


def sample_cycles(image: ModelImage) -> int:
    """Cycles of a sample, from the first word of one to that of the next."""
    return 1 + sum(instruction_cycles(each, image.shape.lanes) for each in image.instructions)

"""Cycles of a program, by closed form: steps, and what an instruction takes besides."""

from __future__ import annotations

from stoker.deploy.rtl.engine.image import ModelImage
from stoker.deploy.rtl.engine.instructions import Instruction, InstructionKind

_FETCHED = 10
"""An instruction's fetch and its first addresses."""
_ENTERED = 1
_LAW = 19
"""From a step of lanes to its written result."""
BESIDES_STEPS = _FETCHED + _LAW
"""What a nest of lanes takes besides its steps."""
_SUMMED = 4
"""From a row's last address to its sum."""
_PASS = 12
"""From a row's last address to the end of a pass with products."""
_DIVIDED = 64 + 32 + 64
"""Two quotients and a root of 64 bits."""
_SHARE = 21
"""A number's: its read, and 17 bits of a quotient."""


def instruction_cycles(instruction: Instruction, lanes: int) -> int:
    """Cycles from an instruction's fetch to the next one's.

    Args:
        instruction: any.
        lanes: of the engine.
    """
    match instruction.kind:
        case InstructionKind.SHARES:
            return _FETCHED + _ENTERED + instruction.rows * (instruction.size + _SUMMED + instruction.size * _SHARE + 1)
        case InstructionKind.NORMAL:
            passes = 3 * instruction.size + _SUMMED + 2 * _PASS
            return _FETCHED + _ENTERED + instruction.rows * (passes + _DIVIDED + 1)
        case InstructionKind.INPUT:
            return _FETCHED + _ENTERED + instruction.steps
        case _:
            tree = (lanes.bit_length() - 1) if instruction.array else 0
            return _FETCHED + instruction.steps + _LAW + tree


def sample_cycles(image: ModelImage) -> int:
    """Cycles of a sample, from the first word of one to that of the next."""
    return 1 + sum(instruction_cycles(each, image.shape.lanes) for each in image.instructions)


def cycles_by_value(image: ModelImage) -> dict[str, int]:
    """Cycles of a sample that each value of a model takes, in the order in which they are finished."""
    found: dict[str, int] = {}
    for instruction, name in zip(image.instructions, image.operations, strict=True):
        found[name] = found.pop(name, 0) + instruction_cycles(instruction, image.shape.lanes)
    return found

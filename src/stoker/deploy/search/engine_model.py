"""What an engine takes of an FPGA, and its clock, from its sizes; and the fit to synthesised ones.

Multipliers and memories follow from the netlist's text. The rest has parts for the whole engine, for each lane and for
each multiplier of the array, with fitted weights that are not negative.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import resources
from statistics import fmean

import msgspec

from stoker.deploy.rtl.engine.shape import FACTOR_BITS, NUMBER_BITS, OPERAND_BITS, SUM_BITS, EngineShape
from stoker.deploy.search.memory_forms import DISTRIBUTED_LUTS, MappedMemory, MemoryShape, mapped
from stoker.deploy.search.model import DeviceDemand, least_squares, weighed
from stoker.deploy.tools.devices import Family, Fpga

_LAW_MULTIPLIERS = 2
_ROW_MULTIPLIERS = 8
"""Seven of layer norm, one of addresses in tables."""
_FETCH_BITS = 128


class MeasuredEngine(msgspec.Struct, frozen=True, kw_only=True):
    """An engine that was synthesised, and placed or not."""

    shape: EngineShape
    luts: int
    flip_flops: int
    dsps: int
    block_rams: int
    clock_mhz: float | None = None
    """None if it was synthesised only."""


class EngineModel(msgspec.Struct, frozen=True, kw_only=True):
    """Fitted weights, with what they were fitted to."""

    family: Family
    grade: str
    """Its grade of speed."""
    obtained: str
    """Tools, part, and what was synthesised."""
    luts: dict[str, float]
    """Weights of what :func:`_parts` counts."""
    flip_flops: dict[str, float]
    period_ns: float
    """The mean of the placed ones, whatever their size: registers after each step leave little else."""
    engines: tuple[MeasuredEngine, ...]

    def demand(self, shape: EngineShape) -> DeviceDemand:
        """What an engine takes."""
        memories = [found for _, found in engine_memories(shape, self.family)]
        parts = _parts(shape.lanes)
        return DeviceDemand(
            luts=weighed(self.luts, parts) + _distributed(memories),
            flip_flops=weighed(self.flip_flops, parts), dsps=engine_multipliers(shape.lanes) + _ROW_MULTIPLIERS,
            block_rams=sum(each.cells for each in memories if each.form == "block"),
        )  # fmt: skip

    @property
    def clock_mhz(self) -> float:
        """The clock of any engine."""
        return 1e3 / self.period_ns


def engine_multipliers(lanes: int) -> int:
    """Multipliers of the array and the lanes, and two in each requantiser."""
    return lanes * (lanes + 1 + _LAW_MULTIPLIERS)


def engine_memories(shape: EngineShape, family: Family) -> list[tuple[MemoryShape, MappedMemory]]:
    """The memories of an engine and what each becomes: those that are loaded hold two models."""
    lanes = shape.lanes
    widths = {
        "instructions": _FETCH_BITS, "weights": 8 * lanes * lanes, "tables": OPERAND_BITS * lanes,
        "scales": (SUM_BITS + FACTOR_BITS) * lanes,
    }  # fmt: skip
    found = [
        MemoryShape(use=name, words=2 * shape.words[name], bits=bits, written=True) for name, bits in widths.items()
    ]
    # Two copies of each bank, of which both are read in a cycle.
    found += [MemoryShape(use="data", words=shape.data_words, bits=NUMBER_BITS, written=True)] * (2 * lanes)
    return [(each, mapped(each, family)) for each in found]


@cache
def engine_model_of(part: Fpga) -> EngineModel:
    """The model that is shipped for a part.

    Raises:
        ValueError: it has no multipliers, or no engine was synthesised for its family.
    """
    if not part.dsps:
        raise ValueError(f"an engine's array is of hardware multipliers, and {part.name} has none for it")
    file = resources.files("stoker.deploy.search").joinpath("data", f"{part.family}-engine.json")
    if not file.is_file():
        raise ValueError(f"no engine was synthesised for {part.family}: what one takes of it is not known")
    return msgspec.json.decode(file.read_bytes(), type=EngineModel)


def fitted_engines(measured: Sequence[MeasuredEngine], part: Fpga, obtained: str) -> EngineModel:
    """The model whose relative errors over synthesised engines have the least squares.

    Args:
        measured: engines with what the tools found, at least one of them placed.
        part: that they were placed on.
        obtained: how, for readers of the model.

    Raises:
        MissingExtraError: scipy is not installed.
    """
    parts = [_parts(each.shape.lanes) for each in measured]
    memories = [[found for _, found in engine_memories(each.shape, part.family)] for each in measured]
    luts = [each.luts - _distributed(found) for each, found in zip(measured, memories, strict=True)]
    return EngineModel(
        family=part.family, grade=part.grade, obtained=obtained, luts=least_squares(parts, luts),
        flip_flops=least_squares(parts, [each.flip_flops for each in measured]),
        period_ns=fmean(1e3 / each.clock_mhz for each in measured if each.clock_mhz is not None),
        engines=tuple(measured),
    )  # fmt: skip


def _parts(lanes: int) -> dict[str, float]:
    return {"engine": 1.0, "lanes": lanes, "array": lanes * lanes}


def _distributed(memories: Sequence[MappedMemory]) -> float:
    return float(sum(DISTRIBUTED_LUTS * each.cells for each in memories if each.form == "distributed"))

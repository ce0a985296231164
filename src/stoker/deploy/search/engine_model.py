"""What an engine takes of an FPGA, and its clock, from its sizes; and the fit to synthesised ones.

Multipliers and memories follow from the netlist's text. The rest has parts for the whole engine, for each lane and for
each multiplier of the array, with fitted weights that are not negative.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from statistics import fmean

import msgspec
from msgspec import structs

from stoker.deploy.rtl.engine.shape import FACTOR_BITS, LANES, NUMBER_BITS, OPERAND_BITS, SUM_BITS, EngineShape
from stoker.deploy.search.contents import NARROW_BITS
from stoker.deploy.search.memory_forms import DISTRIBUTED_LUTS, MappedMemory, MemoryShape, mapped
from stoker.deploy.search.model import REGISTERED, DeviceDemand, least_squares, weighed
from stoker.deploy.tools.devices import Family, Fpga

_LAW_MULTIPLIERS = 2
_ROW_MULTIPLIERS = 7
"""What layer norm takes."""
_FETCH_BITS = 128
_LEAST: Mapping[str, str] = {
    "ice40-up5k": "5,939 of its 5,280 lookup tables, and 24 multipliers where there are 8",
    "ice40-hx8k": "16,687 of its 7,680 lookup tables",
}
"""What yosys 0.70 makes of an engine of 2 lanes that holds 16 instructions, 16 words of each kind and 64 of data; its
block memories are 30. The UP5K's multipliers are of 16 x 16, and layer norm alone takes 11; the HX8K has none."""
ENGINES = (
    EngineShape(lanes=2, data_words=1024, weight_words=4096, table_words=16, scale_words=64, instructions=16),
    EngineShape(lanes=4, data_words=512, weight_words=1024, table_words=16, scale_words=32, instructions=16),
    EngineShape(lanes=8, data_words=256, weight_words=256, table_words=16, scale_words=16, instructions=16),
)
"""The engines that models are fitted to: of one capacity, whatever their lanes."""


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
    period_ns: float | None
    """The mean of the placed ones, whatever their size: registers after each step leave little else; None if all were
    synthesised only."""
    engines: tuple[MeasuredEngine, ...]

    def at(self, clock_mhz: float) -> EngineModel:
        """The model of a family without clocks, at one that is stated."""
        obtained = f"{self.obtained}; {clock_mhz:g} MHz as stated"
        return structs.replace(self, period_ns=1e3 / clock_mhz, obtained=obtained)

    def demand(self, shape: EngineShape) -> DeviceDemand:
        """What an engine takes."""
        memories = engine_memories(shape, self.family)
        parts = _parts(shape.lanes)
        return DeviceDemand(
            luts=weighed(self.luts, parts) + _distributed_luts(memories),
            flip_flops=weighed(self.flip_flops, parts) + _read_bits(memories), dsps=_multipliers(shape, self.family),
            block_rams=sum(found.cells for _, found in memories if found.form == "block"),
        )  # fmt: skip

    @property
    def clock_mhz(self) -> float | None:
        """The clock of any engine; None where none was placed, and none was stated."""
        return None if self.period_ns is None else 1e3 / self.period_ns


def engine_multipliers(lanes: int) -> int:
    """Multipliers of the array and the lanes, and two in each requantiser."""
    return lanes * (lanes + 1 + _LAW_MULTIPLIERS)


def _multipliers(shape: EngineShape, family: Family) -> int:
    """All of them: those of layer norm and of addresses in tables as well."""
    # Of an address, as many bits are computed as memory of tables or weights has; narrow products are lookup tables.
    bits = max((shape.table_words * shape.lanes - 1).bit_length(), (shape.weight_words - 1).bit_length())
    by_address = family not in REGISTERED or bits >= NARROW_BITS
    return engine_multipliers(shape.lanes) + _ROW_MULTIPLIERS + by_address


_Memories = Sequence[tuple[MemoryShape, MappedMemory]]


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
        raise ValueError(without_multipliers(part))
    file = resources.files("stoker.deploy.search").joinpath("data", f"{part.family}-engine.json")
    if not file.is_file():
        raise ValueError(f"no engine was synthesised for {part.family}: what one takes of it is not known")
    return msgspec.json.decode(file.read_bytes(), type=EngineModel)


def without_multipliers(part: Fpga) -> str:
    """Why a part without multipliers for designs has no engines."""
    return (
        f"an engine's array is of hardware multipliers, and {part.name} has none for it: "
        f"the least engine, of {LANES[0]} lanes, takes {_LEAST[part.name]}"
    )


def fitted_engines(measured: Sequence[MeasuredEngine], part: Fpga, obtained: str) -> EngineModel:
    """The model whose relative errors over synthesised engines have the least squares.

    Args:
        measured: engines with what the tools found.
        part: that they were synthesised for, and placed on if anything places them.
        obtained: how, for readers of the model.

    Raises:
        MissingExtraError: scipy is not installed.
    """
    parts = [_parts(each.shape.lanes) for each in measured]
    memories = [engine_memories(each.shape, part.family) for each in measured]
    luts = [each.luts - _distributed_luts(found) for each, found in zip(measured, memories, strict=True)]
    flip_flops = [each.flip_flops - _read_bits(found) for each, found in zip(measured, memories, strict=True)]
    periods = [1e3 / each.clock_mhz for each in measured if each.clock_mhz is not None]
    return EngineModel(
        family=part.family, grade=part.grade, obtained=obtained, luts=least_squares(parts, luts),
        flip_flops=least_squares(parts, flip_flops),
        period_ns=fmean(periods) if periods else None, engines=tuple(measured),
    )  # fmt: skip


def _parts(lanes: int) -> dict[str, float]:
    return {"engine": 1.0, "lanes": lanes, "array": lanes * lanes}


def _distributed_luts(memories: _Memories) -> float:
    return float(sum(DISTRIBUTED_LUTS * found.cells for _, found in memories if found.form == "distributed"))


def _read_bits(memories: _Memories) -> int:
    """Bits of registers into which distributed memories are read; block memories have them."""
    return sum(shape.bits for shape, found in memories if found.form == "distributed")

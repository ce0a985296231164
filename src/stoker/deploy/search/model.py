"""What a design takes of a family of FPGAs, and its clock, from what is in its units; and the fit to synthesised ones.

Multipliers and block memories follow from rules and are not fitted. Lookup tables and flip-flops are sums of counted
parts with fitted weights that are not negative, and so is the clock's period of what a design takes: all units have
registers after each step, so distances decide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from statistics import median
from typing import Any

import msgspec
import numpy as np
from msgspec import structs

from stoker.core.extras import require
from stoker.deploy.rtl.structure import DesignNode, Structure
from stoker.deploy.search.contents import UnitContents, contents_of, end_contents, fork_contents, sums_contents, total
from stoker.deploy.search.memory_forms import DISTRIBUTED_LUTS, MappedMemory, MemoryShape, mapped
from stoker.deploy.tools.devices import TOOLS, Family, Fpga

SOFT: tuple[Family, ...] = ("ice40",)
"""Families whose designs have no hardware multipliers: lookup tables multiply."""
REGISTERED: tuple[Family, ...] = ("xc7",)
"""Families whose multipliers have registers and an adder, and which leave narrow products to lookup tables."""
_LUT_BITS: Mapping[Family, int] = {"ecp5": 4, "ice40": 4, "xc7": 6}
"""Inputs of a lookup table, as powers of two of the bits that it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceDemand:
    """What is taken of an FPGA.

    Attributes:
        luts: lookup tables, of the family's number of inputs.
        flip_flops: of one bit.
        dsps: hardware multipliers.
        block_rams: block memories.
    """

    luts: float = 0.0
    flip_flops: float = 0.0
    dsps: int = 0
    block_rams: int = 0

    def __add__(self, other: DeviceDemand) -> DeviceDemand:
        return DeviceDemand(
            luts=self.luts + other.luts, flip_flops=self.flip_flops + other.flip_flops, dsps=self.dsps + other.dsps,
            block_rams=self.block_rams + other.block_rams,
        )  # fmt: skip

    def __sub__(self, other: DeviceDemand) -> DeviceDemand:
        return DeviceDemand(
            luts=self.luts - other.luts, flip_flops=self.flip_flops - other.flip_flops, dsps=self.dsps - other.dsps,
            block_rams=self.block_rams - other.block_rams,
        )  # fmt: skip

    def of(self, kind: str) -> float:
        """How much of a kind, one of :data:`KINDS`."""
        return getattr(self, kind)


KINDS = ("luts", "flip_flops", "dsps", "block_rams")


class MeasuredSpecimen(msgspec.Struct, frozen=True, kw_only=True):
    """A design of :mod:`stoker.deploy.search.specimens`, synthesised, and placed or not."""

    name: str
    luts: int
    flip_flops: int
    dsps: int
    block_rams: int
    clock_mhz: float | None
    """None if it was synthesised only."""


class SlowerGrade(msgspec.Struct, frozen=True, kw_only=True):
    """Another grade of speed, on which designs take the same cells and clocks are slower by a factor."""

    median: float
    """The factor, in the median of designs that were placed on both."""
    least: float
    most: float
    designs: int


class FitDistance(msgspec.Struct, frozen=True, kw_only=True):
    """How far lookup tables of some of a model's specimens are from those of the tools, relatively."""

    median_frac: float
    worst_frac: float
    designs: int


class ResourceModel(msgspec.Struct, frozen=True, kw_only=True):
    """Fitted weights, with what they were fitted to."""

    family: Family
    grade: str
    """Its grade of speed."""
    obtained: str
    """Tools, part, and command."""
    luts: dict[str, float]
    """Weights of what :func:`_lut_parts` counts."""
    flip_flops: dict[str, float]
    period_ns: dict[str, float]
    """Empty where no clock is known."""
    specimens: tuple[MeasuredSpecimen, ...]
    slower: dict[str, SlowerGrade] = {}
    """By grade."""
    sums_off: FitDistance | None = None
    """How far it is from specimens with weights in the circuit; None if it was fitted to none."""

    def on(self, grade: str) -> ResourceModel:
        """The model of a grade, this one or one of :attr:`slower`."""
        if grade == self.grade:
            return self
        found = self.slower[grade]
        spread = f"{found.least:.2f} to {found.most:.2f} in {found.designs} designs placed on both"
        return structs.replace(
            self, grade=grade, slower={},
            period_ns={name: found.median * weight for name, weight in self.period_ns.items()},
            obtained=f"{self.obtained}; clocks of grade {grade} {found.median:.2f} times slower ({spread})",
        )  # fmt: skip

    def at(self, clock_mhz: float) -> ResourceModel:
        """The model of a family without clocks, at one that is stated."""
        period = {"clocking": 1e3 / clock_mhz}
        return structs.replace(self, period_ns=period, obtained=f"{self.obtained}; {clock_mhz:g} MHz as stated")

    def demand(self, contents: UnitContents) -> DeviceDemand:
        """What contents take."""
        contents = _built(contents, self.family)
        memories = [(shape, mapped(shape, self.family)) for shape in contents.memories]
        return DeviceDemand(
            luts=weighed(self.luts, _lut_parts(contents, memories, self.family)),
            flip_flops=weighed(self.flip_flops, _flip_flop_parts(contents, memories)),
            dsps=contents.multipliers,
            block_rams=sum(found.cells for _, found in memories if found.form == "block"),
        )

    def frame(self, ends: Sequence[int] = ()) -> DeviceDemand:
        """What a design takes besides its units: registers of control, and counters of its ends' words."""
        around = total(end_contents(words) for words in ends)
        base = DeviceDemand(luts=self.luts["design"], flip_flops=self.flip_flops["design"])
        return base + self.demand(around)

    def clock_mhz(self, demand: DeviceDemand, longest: int) -> float | None:
        """The clock of a design that takes so much, and whose widest multiplier has factors of so many bits.

        None where designs are synthesised alone, and no clock was stated.
        """
        if not self.period_ns:
            return None
        return 1e3 / weighed(self.period_ns, _period_parts(demand, longest, self.family))


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimatedDesign:
    """A design as the model sees it.

    Attributes:
        demand: of all of it.
        nodes: demand of each node, by name.
        clock_mhz: estimated, or stated; None where neither was.
    """

    demand: DeviceDemand
    nodes: Mapping[str, DeviceDemand] = field(default_factory=dict[str, DeviceDemand])
    clock_mhz: float | None


def estimated(structure: Structure, model: ResourceModel) -> EstimatedDesign:
    """What a design takes, and its clock."""
    nodes: dict[str, DeviceDemand] = {}
    longest = 0
    for name, node in structure.nodes.items():
        found = node_contents(node)
        longest = max(longest, found.longest)
        readers = len(structure.readers(name))
        if readers > 1:
            found = found + fork_contents(readers)
        nodes[name] = model.demand(found)
    ends = [structure.stream(end).words for end in (*structure.inputs, *structure.outputs)]
    demand = sum(nodes.values(), model.frame(ends))
    return EstimatedDesign(demand=demand, nodes=nodes, clock_mhz=model.clock_mhz(demand, longest))


def node_contents(node: DesignNode) -> UnitContents:
    """What is in a node; nothing in an input of the design."""
    if not node.module:
        return UnitContents()
    found = contents_of(node.module, node.parameters)
    return found if node.constant is None else found + sums_contents(node.constant.sums)


@cache
def model_of(part: Fpga) -> ResourceModel:
    """The model that is shipped for a part."""
    file = resources.files("stoker.deploy.search").joinpath("data", f"{part.family}.json")
    return msgspec.json.decode(file.read_bytes(), type=ResourceModel).on(part.grade)


def fitted(
    measured: Sequence[tuple[Structure, MeasuredSpecimen]], part: Fpga, obtained: str
) -> ResourceModel:  # fmt: skip
    """The model whose relative errors over synthesised designs have the least squares.

    Args:
        measured: designs with what the tools found.
        part: that they were synthesised for, and placed on if anything places them.
        obtained: how, for readers of the model.

    Raises:
        MissingExtraError: scipy is not installed.
    """
    family = part.family
    luts: list[dict[str, float]] = []
    flip_flops: list[dict[str, float]] = []
    periods: list[tuple[dict[str, float], float]] = []
    for structure, found in measured:
        whole = _built(design_contents(structure), family)
        memories = [(shape, mapped(shape, family)) for shape in whole.memories]
        luts.append(_lut_parts(whole, memories, family) | {"design": 1.0})
        flip_flops.append(_flip_flop_parts(whole, memories) | {"design": 1.0})
        taken = DeviceDemand(
            luts=found.luts, flip_flops=found.flip_flops, dsps=found.dsps, block_rams=found.block_rams
        )  # fmt: skip
        if found.clock_mhz is not None:
            periods.append((_period_parts(taken, whole.longest, family), 1e3 / found.clock_mhz))
    specimens = [found for _, found in measured]
    period_parts, clocks = [parts for parts, _ in periods], [period for _, period in periods]
    made = ResourceModel(
        family=family, grade=part.grade, obtained=obtained, luts=least_squares(luts, [each.luts for each in specimens]),
        flip_flops=least_squares(flip_flops, [each.flip_flops for each in specimens]),
        period_ns=least_squares(period_parts, clocks) if periods else {}, specimens=tuple(specimens),
    )  # fmt: skip
    off = [
        abs(estimated(structure, made).demand.luts / found.luts - 1)
        for structure, found in measured
        if structure.constants
    ]
    return structs.replace(
        made, sums_off=FitDistance(median_frac=median(off), worst_frac=max(off), designs=len(off)) if off else None
    )  # fmt: skip


def design_contents(structure: Structure) -> UnitContents:
    """What is in a whole design, its frame's registers aside."""
    found = [node_contents(node) for node in structure.nodes.values()]
    found += [fork_contents(count) for name in structure.nodes if (count := len(structure.readers(name))) > 1]
    found += [end_contents(structure.stream(end).words) for end in (*structure.inputs, *structure.outputs)]
    return total(found)


def least_squares(parts: Sequence[Mapping[str, float]], wanted: Sequence[float]) -> dict[str, float]:
    """Weights of named parts that are not negative, for the least squares of relative errors.

    Raises:
        MissingExtraError: scipy is not installed.
    """
    optimize: Any = require("scipy.optimize", extra="plan")
    names = list(parts[0])
    rows = np.array([[each[name] for name in names] for each in parts], np.float64)
    target = np.array(wanted, np.float64)
    weights, _ = optimize.nnls(rows / target[:, None], np.ones(len(target)))
    return {name: float(weight) for name, weight in zip(names, weights, strict=True)}


def weighed(weights: Mapping[str, float], parts: Mapping[str, float]) -> float:
    """The sum of parts with their weights."""
    return sum(weights[name] * count for name, count in parts.items())


def _built(contents: UnitContents, family: Family) -> UnitContents:
    """The contents outside of the multipliers that a family has, and these."""
    if family in SOFT:
        return replace(contents, multipliers=0)
    if family not in REGISTERED:
        return replace(contents, products=0, fixed_products=0)
    return replace(
        contents, adders=contents.adders - contents.taken_adders, muxes=contents.muxes - contents.taken_muxes,
        registers=contents.registers - contents.taken_registers,
        multipliers=contents.multipliers - contents.narrow_multipliers, products=contents.narrow_products,
        fixed_products=0,
    )  # fmt: skip


_Memories = Sequence[tuple[MemoryShape, MappedMemory]]


def _lut_parts(contents: UnitContents, memories: _Memories, family: Family) -> dict[str, float]:
    found = {
        "adders": contents.adders,
        "addresses": contents.addresses,
        "muxes": contents.muxes,
        "shifters": contents.shifters,
        "counters": contents.counters,
        "windows": contents.windows,
        "sums": contents.sums,
        "units": contents.units,
        "distributed": sum(DISTRIBUTED_LUTS * found.cells for _, found in memories if found.form == "distributed"),
        "constants": sum(_constant_luts(shape, family) for shape, found in memories if found.form == "logic"),
        "small": sum(shape.words * shape.bits for shape, found in memories if _in_registers(shape, found)),
    }
    if family in REGISTERED:
        found["products"] = contents.products
    if family not in SOFT:
        return found
    # A logic cell has one lookup table and one flip-flop: some registers have a cell to themselves. What is
    # subtracted is inverted in another one, for carries take in what comes to a cell.
    return found | {
        "sums": contents.sum_registers + contents.waiting + contents.subtracted,
        "products": contents.products, "fixed_products": contents.fixed_products, "registers": contents.registers,
        "address_registers": contents.address_registers,
    }  # fmt: skip


def _flip_flop_parts(contents: UnitContents, memories: _Memories) -> dict[str, float]:
    return {
        "registers": contents.registers,
        "address_registers": contents.address_registers,
        "counters": contents.counters,
        "windows": contents.windows,
        "sums": contents.sum_registers + contents.waiting,
        "units": contents.units,
        # A clocked memory that is no block memory is read into registers.
        "read": sum(
            shape.bits for shape, found in memories if shape.clocked and shape.words > 1 and found.form != "block"
        ),
        "small": sum(shape.words * shape.bits for shape, found in memories if _in_registers(shape, found)),
    }


def _period_parts(demand: DeviceDemand, longest: int, family: Family) -> dict[str, float]:
    """The larger a design, the farther apart its parts; multipliers and block memories lie in separate columns.

    Multipliers of lookup tables take longer, the wider they are. A stated clock has no parts.
    """
    if TOOLS[family].placer is None:
        return {"clocking": 1.0}
    if family in SOFT:
        return {"clocking": 1.0, "products": longest / 10, "luts": demand.luts / 1000}
    return {
        "clocking": 1.0, "flip_flops": demand.flip_flops / 1000, "dsps": demand.dsps / 10,
        "block_rams": demand.block_rams / 10,
    }  # fmt: skip


def _constant_luts(shape: MemoryShape, family: Family) -> float:
    """Lookup tables of constants: one a bit for as many words as it holds, and none where there is one word."""
    return 0.0 if shape.written or shape.words < 2 else shape.bits * -(-shape.words // (1 << _LUT_BITS[family]))


def _in_registers(shape: MemoryShape, found: MappedMemory) -> bool:
    return found.form == "logic" and shape.written

"""Specimens and engines through synthesis and placement, and resource models fitted to what comes out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from stoker.core.saying import say
from stoker.deploy.rtl.engine.files import TOP, netlist
from stoker.deploy.rtl.engine.shape import EngineShape
from stoker.deploy.rtl.generate import write_design
from stoker.deploy.rtl.mapping import lower
from stoker.deploy.rtl.structure import Structure
from stoker.deploy.search.engine_model import (
    ENGINES,
    EngineModel,
    MeasuredEngine,
    fitted_engines,
    without_multipliers,
)
from stoker.deploy.search.memory_forms import mapped
from stoker.deploy.search.model import (
    REGISTERED,
    SOFT,
    EstimatedDesign,
    MeasuredSpecimen,
    ResourceModel,
    design_contents,
    estimated,
    fitted,
)
from stoker.deploy.search.specimens import (
    Specimen,
    compared_specimens,
    narrow_specimens,
    small_specimens,
    specimens,
)
from stoker.deploy.tools.devices import Fpga
from stoker.deploy.tools.placing import in_cells, place
from stoker.deploy.tools.running import of_design, work_folder
from stoker.deploy.tools.synthesis import YOSYS, synthesise, synthesise_texts
from stoker.deploy.tools.wasm import version_of
from stoker.records.deploy.hardware import UNPLACED
from stoker.records.deploy.search import CalibratedRow, CalibrationReport

_CELLS, _SUM_CELLS = 4, 1.5
"""Logic cells of a part for each bit of a product, and of a sum in the circuit, so that all of the design fits."""


def calibrate(part: Fpga, kept_in: Path | None = None, *, limit_s: float) -> tuple[ResourceModel, list[Structure]]:
    """Synthesises and places the specimens that a part has room for; the model fitted to them, and their designs.

    Where nothing places designs on the part, the model is of resources alone.

    Args:
        part: on which they are placed.
        kept_in: where results of tools are kept; the user's cache by default.
        limit_s: for each run of a tool.

    Raises:
        MissingExtraError: a tool or scipy is not installed.
        ToolError: a tool fails or takes too long.
    """
    found = list(measured(specimens_on(part), part, kept_in, limit_s=limit_s))
    obtained = f"{_tools_of(part)}, {len(found)} designs"
    return fitted(found, part, obtained), [structure for structure, _ in found]


def _tools_of(part: Fpga) -> str:
    placer = part.tools.placer
    placing = f"{version_of(placer)}, {part.name}, seed 1" if placer else f"{part.name}, {UNPLACED}"
    return f"{version_of(YOSYS)}, {placing}"


def specimens_on(part: Fpga) -> list[Specimen]:
    """The specimens that a part has room for, by what is counted in them."""
    own = narrow_specimens() if part.family in REGISTERED else ()
    if part.family in SOFT:
        own = (*small_specimens(), *compared_specimens())
    able = (*specimens(), *own)
    return [each for each in able if _has_room(part, each)]


def _has_room(part: Fpga, specimen: Specimen) -> bool:
    whole = design_contents(_lowered(specimen))
    memories = (mapped(shape, part.family) for shape in whole.memories)
    blocks = sum(each.cells for each in memories if each.form == "block")
    sums = whole.sum_registers + whole.waiting + whole.subtracted + whole.registers
    room = part.dsps > 0 or max(_CELLS * (whole.products + whole.fixed_products), _SUM_CELLS * sums) <= part.luts
    return blocks <= part.block_rams and room


def _lowered(specimen: Specimen) -> Structure:
    return lower(
        specimen.graph, specimen.foldings, constant=specimen.constant, thresholds=specimen.thresholds
    )  # fmt: skip


def measured(
    chosen: Iterable[Specimen], part: Fpga, kept_in: Path | None = None, *, limit_s: float
) -> Iterable[tuple[Structure, MeasuredSpecimen]]:
    """Each specimen's design with what the tools found.

    Raises:
        MissingExtraError: a tool is not installed.
        ToolError: a tool fails or takes too long.
    """
    for specimen in chosen:
        structure = _lowered(specimen)
        with of_design(specimen.name):
            with work_folder("specimen") as made:
                folder = made / "design"
                write_design(structure, folder)
                netlist, taken = synthesise(folder, part, kept_in, limit_s=limit_s)
            placed = place(netlist, part, kept_in, limit_s=limit_s)
        taken = in_cells(taken, placed)
        clock = f", {placed.clock_mhz:.1f} MHz" if placed else ""
        say(f"{specimen.name}: {taken.luts} LUTs{clock}")
        yield (
            structure,
            MeasuredSpecimen(
                name=specimen.name, luts=taken.luts, flip_flops=taken.flip_flops, dsps=taken.dsps,
                block_rams=taken.block_rams, clock_mhz=placed.clock_mhz if placed else None,
            ),
        )  # fmt: skip


def calibrate_engines(part: Fpga, kept_in: Path | None = None, *, limit_s: float) -> EngineModel:
    """Synthesises :data:`ENGINES`, places those that a part has multipliers for, and fits the model of engines to them.

    Args:
        part: on which they are placed, if anything places designs on it.
        kept_in: where results of tools are kept; the user's cache by default.
        limit_s: for each run of a tool.

    Raises:
        MissingExtraError: a tool or scipy is not installed.
        ToolError: a tool fails or takes too long.
        ValueError: the part has no multipliers.
    """
    if not part.dsps:
        raise ValueError(without_multipliers(part))
    found = [measured_engine(shape, part, kept_in, limit_s=limit_s) for shape in ENGINES]
    lanes = ", ".join(str(each.shape.lanes) for each in found)
    return fitted_engines(found, part, f"{_tools_of(part)}, engines of {lanes} lanes")


def measured_engine(
    shape: EngineShape, part: Fpga, kept_in: Path | None = None, *, limit_s: float
) -> MeasuredEngine:  # fmt: skip
    """An engine with what the tools found; not placed where the part has too few multipliers.

    Raises:
        MissingExtraError: a tool is not installed.
        ToolError: a tool fails or takes too long.
    """
    texts = netlist(shape)
    cells, taken = synthesise_texts(texts, tuple(texts), TOP, part, kept_in, limit_s=limit_s)
    placed = place(cells, part, kept_in, limit_s=limit_s) if taken.dsps <= part.dsps else None
    clock = f", {placed.clock_mhz:.1f} MHz" if placed else ""
    say(f"engine of {shape.lanes} lanes: {taken.luts} LUTs{clock}")
    return MeasuredEngine(
        shape=shape, luts=taken.luts, flip_flops=taken.flip_flops, dsps=taken.dsps, block_rams=taken.block_rams,
        clock_mhz=placed.clock_mhz if placed else None,
    )  # fmt: skip


def judged_engines(model: EngineModel) -> CalibrationReport:
    """How far a model of engines is from those that it was fitted to."""
    rows: list[CalibratedRow] = []
    for found in model.engines:
        guess = model.demand(found.shape)
        clock = model.clock_mhz
        rows.append(
            CalibratedRow(
                name=f"engine, {found.shape.lanes} lanes", luts=(found.luts, guess.luts),
                flip_flops=(found.flip_flops, guess.flip_flops), dsps=(found.dsps, guess.dsps),
                block_rams=(found.block_rams, guess.block_rams),
                clock_mhz=None if found.clock_mhz is None or clock is None else (found.clock_mhz, clock),
            )
        )  # fmt: skip
    return CalibrationReport(obtained=model.obtained, rows=tuple(rows))


def judged(model: ResourceModel, structures: Sequence[Structure]) -> CalibrationReport:
    """How far a model is from its own specimens, whose designs are given in the same order."""
    rows: list[CalibratedRow] = []
    for structure, found in zip(structures, model.specimens, strict=True):
        guess = estimated(structure, model)
        rows.append(
            CalibratedRow(
                name=found.name, luts=(found.luts, guess.demand.luts),
                flip_flops=(found.flip_flops, guess.demand.flip_flops), dsps=(found.dsps, guess.demand.dsps),
                block_rams=(found.block_rams, guess.demand.block_rams), clock_mhz=_clocks(found, guess),
            )
        )  # fmt: skip
    return CalibrationReport(obtained=model.obtained, rows=tuple(rows))


def _clocks(found: MeasuredSpecimen, guess: EstimatedDesign) -> tuple[float, float] | None:
    if found.clock_mhz is None or guess.clock_mhz is None:
        return None
    return found.clock_mhz, guess.clock_mhz

"""Specimens through synthesis and placement, and a resource model fitted to what comes out."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from stoker.core.saying import say
from stoker.deploy.rtl.generate import write_design
from stoker.deploy.rtl.mapping import lower
from stoker.deploy.rtl.structure import Structure
from stoker.deploy.search.memory_forms import mapped
from stoker.deploy.search.model import (
    REGISTERED,
    EstimatedDesign,
    MeasuredSpecimen,
    ResourceModel,
    design_contents,
    estimated,
    fitted,
)
from stoker.deploy.search.specimens import Specimen, narrow_specimens, specimens
from stoker.deploy.tools.devices import Fpga
from stoker.deploy.tools.placing import in_cells, place
from stoker.deploy.tools.running import of_design
from stoker.deploy.tools.synthesis import YOSYS, synthesise
from stoker.deploy.tools.wasm import version_of
from stoker.records.deploy.hardware import UNPLACED
from stoker.records.deploy.search import CalibratedRow, CalibrationReport

_CELLS = 4
"""Logic cells of a part for each bit of a product, so that all of the design fits."""


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
    placing = (
        f"{version_of(part.tools.placer)}, {part.name}, seed 1" if part.tools.placer else f"{part.name}, {UNPLACED}"
    )
    obtained = f"{version_of(YOSYS)}, {placing}, {len(found)} designs"
    return fitted(found, part, obtained), [structure for structure, _ in found]


def specimens_on(part: Fpga) -> list[Specimen]:
    """The specimens that a part has room for, by what is counted in them.

    Those with weights in the circuit are for parts with multipliers, which they save. On 7 series they are not fitted.
    """
    if part.family in REGISTERED:
        able = [*(each for each in specimens() if not each.constant), *narrow_specimens()]
    else:
        able = [each for each in specimens() if part.dsps or not each.constant]
    return [each for each in able if _has_room(part, each)]


def _has_room(part: Fpga, specimen: Specimen) -> bool:
    whole = design_contents(lower(specimen.graph, specimen.foldings, constant=specimen.constant))
    memories = (mapped(shape, part.family) for shape in whole.memories)
    blocks = sum(each.cells for each in memories if each.form == "block")
    products = 0.0 if part.dsps else whole.products + whole.fixed_products
    return blocks <= part.block_rams and (part.dsps > 0 or products * _CELLS <= part.luts)


def measured(
    chosen: Iterable[Specimen], part: Fpga, kept_in: Path | None = None, *, limit_s: float
) -> Iterable[tuple[Structure, MeasuredSpecimen]]:
    """Each specimen's design with what the tools found.

    Raises:
        MissingExtraError: a tool is not installed.
        ToolError: a tool fails or takes too long.
    """
    for specimen in chosen:
        structure = lower(specimen.graph, specimen.foldings, constant=specimen.constant)
        with of_design(specimen.name):
            with tempfile.TemporaryDirectory(prefix="stoker-specimen-") as name:
                folder = Path(name, "design")
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

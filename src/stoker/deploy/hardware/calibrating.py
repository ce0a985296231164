"""Specimens through synthesis and placement, and a resource model fitted to what comes out."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

from stoker.core.saying import say
from stoker.deploy.rtl.generate import write_design
from stoker.deploy.rtl.mapping import lower
from stoker.deploy.rtl.structure import Structure
from stoker.deploy.search.model import MeasuredSpecimen, ResourceModel, fitted
from stoker.deploy.search.specimens import Specimen, specimens
from stoker.deploy.tools.devices import Fpga
from stoker.deploy.tools.placing import nextpnr, place
from stoker.deploy.tools.synthesis import YOSYS, synthesise
from stoker.deploy.tools.wasm import version_of


def calibrate(part: Fpga, kept_in: Path | None = None, *, limit_s: float) -> ResourceModel:
    """Synthesises and places all specimens, those that are kept aside, and fits a model to them.

    Args:
        part: on which they are placed.
        kept_in: where results of tools are kept; the user's cache by default.
        limit_s: for each run of a tool.

    Raises:
        MissingExtraError: a tool or scipy is not installed.
        ToolError: a tool fails or takes too long.
    """
    found = list(measured(specimens(), part, kept_in, limit_s=limit_s))
    obtained = f"{version_of(YOSYS)}, {version_of(nextpnr(part))}, {part.name}, seed 1, {len(found)} designs"
    return fitted(found, part.family, obtained)


def measured(
    chosen: Iterable[Specimen], part: Fpga, kept_in: Path | None = None, *, limit_s: float
) -> Iterable[tuple[Structure, MeasuredSpecimen]]:
    """Each specimen's design with what the tools found.

    Raises:
        MissingExtraError: a tool is not installed.
        ToolError: a tool fails or takes too long.
    """
    for specimen in chosen:
        structure = lower(specimen.graph, specimen.foldings)
        with tempfile.TemporaryDirectory(prefix="stoker-specimen-") as name:
            folder = Path(name, "design")
            write_design(structure, folder)
            netlist, taken = synthesise(folder, part, kept_in, limit_s=limit_s)
        placed = place(netlist, part, kept_in, limit_s=limit_s)
        say(f"{specimen.name}: {taken.luts} LUTs, {placed.clock_mhz:.1f} MHz")
        yield (
            structure,
            MeasuredSpecimen(
                name=specimen.name, luts=taken.luts, flip_flops=taken.flip_flops, dsps=taken.dsps,
                block_rams=taken.block_rams, clock_mhz=placed.clock_mhz,
            ),
        )  # fmt: skip

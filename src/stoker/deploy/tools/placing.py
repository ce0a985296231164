"""nextpnr: a netlist placed and routed on a part, and the clock that it can have there by the tool's timing model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from stoker.core.errors import ToolError
from stoker.deploy.tools.devices import Fpga
from stoker.deploy.tools.kept import kept
from stoker.deploy.tools.pins import needs_chains, with_three_pins
from stoker.deploy.tools.running import run_tool
from stoker.deploy.tools.synthesis import Resources
from stoker.deploy.tools.wasm import command_of, prepare, version_of

_REPORT = "report.json"
_WANTED_MHZ = 100
_LOGIC_CELLS = "ICESTORM_LC"


class PlacedDesign(msgspec.Struct, frozen=True, kw_only=True):
    """What nextpnr found."""

    clock_mhz: float
    used: dict[str, tuple[int, int]]
    """Cells used and there, by nextpnr's kinds."""
    logic_cells: int | None = None
    """Cells of iCE40, each with a lookup table and a flip-flop; those that take the place of pins are left out."""


def place(
    netlist: Path, part: Fpga, folder: Path | None = None, *, limit_s: float, seed: int = 1
) -> PlacedDesign | None:  # fmt: skip
    """Places and routes a netlist, if that is not kept; None on a part that nothing places designs on.

    Args:
        netlist: of yosys.
        part: on which it is placed.
        folder: where results of tools are kept.
        limit_s: for nextpnr.
        seed: of its search.

    Raises:
        MissingExtraError: nextpnr is not installed.
        ToolError: it fails (a part that is too small, too), or takes too long.
    """
    package = part.tools.placer
    if package is None:
        return None
    prepare(package)
    options = [
        *part.options,
        "--seed",
        str(seed),
        "--freq",
        str(_WANTED_MHZ),
        "--timing-allow-fail",
        "--report",
        _REPORT,
    ]
    data, chains = netlist.read_bytes(), 0
    # All of iCE40, so that clocks of small and large designs are of one kind: few designs have as few ports as pins.
    if part.family == "ice40" or needs_chains(data, part):
        data, chains = with_three_pins(data, part)
    text = data.decode()

    def make(made: Path) -> None:
        (made / netlist.name).write_text(text, encoding="utf-8")
        command = [*command_of(package), "--quiet", "--json", netlist.name, *options]
        run_tool(command, folder=made, limit_s=limit_s, doing=f"placing the design on {part.name}")
        (made / netlist.name).unlink()

    found = kept("placed", [version_of(package), *options, text], make, folder)
    try:
        report: Mapping[str, Any] = msgspec.json.decode((found / _REPORT).read_bytes())
        clocks = [float(each["achieved"]) for each in report["fmax"].values()]
        used = {kind: (int(each["used"]), int(each["available"])) for kind, each in report["utilization"].items()}
        cells = used.get(_LOGIC_CELLS)
        return PlacedDesign(
            clock_mhz=min(clocks), used={kind: each for kind, each in used.items() if each[0]},
            logic_cells=cells[0] - chains if cells else None,
        )  # fmt: skip
    except (OSError, KeyError, TypeError, ValueError, msgspec.DecodeError) as error:
        raise ToolError(f"`{found / _REPORT}` must hold nextpnr's report, got {error!r}") from error


def in_cells(taken: Resources, placed: PlacedDesign | None) -> Resources:
    """What a design takes, with logic cells in place of lookup tables where a part has such cells."""
    return taken if placed is None or placed.logic_cells is None else structs.replace(taken, luts=placed.logic_cells)

"""A synthesised netlist as a simulator: its cells become what they compute, and Verilator compiles that.

What cells compute is read from the models that come with yosys, but for those of `ecp5_cells.sv`. Cells of 7 series
have none here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from stoker.core.errors import ToolError
from stoker.deploy.rtl.generate import DesignDescription
from stoker.deploy.tools.devices import FPGAS, Fpga
from stoker.deploy.tools.kept import kept
from stoker.deploy.tools.running import run_tool
from stoker.deploy.tools.synthesis import YOSYS
from stoker.deploy.tools.verilator import ports_header, simulator_of
from stoker.deploy.tools.wasm import command_of, prepare, version_of

_FILE = "cells.v"
_NETLIST = "netlist.json"


def netlist_simulator(
    netlist: Path, description: DesignDescription, part: Fpga, folder: Path | None = None, *, limit_s: float
) -> Path:
    """The program that simulates a netlist, with the ports and the harness of the design that it was made from.

    Args:
        netlist: of ``synthesise``, in yosys's JSON.
        description: of the design.
        part: whose cells it has.
        folder: where results of tools are kept.
        limit_s: for each step.

    Raises:
        MissingExtraError: yosys or Verilator is not installed.
        ToolError: the netlist can't be read, or a step fails or takes too long.
        ValueError: what the part's cells compute is not known.
    """
    if part.tools.models is None:
        known = ", ".join(each.name for each in FPGAS if each.tools.models)
        raise ValueError(f"`netlist` must be of a part whose cells can be simulated, {known}, got {part.name}")
    source = cells_as_text(netlist, description.top, part, folder, limit_s=limit_s)
    harness = Path(__file__).with_name("harness.cpp")
    ports = ports_header(description)
    return simulator_of(source, description.top, [_FILE], harness, ports, folder, kind="cells", limit_s=limit_s)


def cells_as_text(netlist: Path, top: str, part: Fpga, folder: Path | None = None, *, limit_s: float) -> Path:
    """The folder with a netlist as Verilog of one module, ``cells.v``, all cells in it.

    Arguments and errors of :func:`netlist_simulator`, with the name of the module.
    """
    prepare(YOSYS)
    try:
        whole: dict[str, Any] = msgspec.json.decode(netlist.read_bytes())
        # Other modules there are the cells' outsides.
        text = msgspec.json.encode({**whole, "modules": {top: whole["modules"][top]}})
    except (OSError, KeyError, TypeError, msgspec.DecodeError) as error:
        raise ToolError(f"`{netlist}` must hold yosys's netlist of {top}, got {error!r}") from error
    library, name = part.tools.models, part.tools.own_models
    own = Path(__file__).with_name(name).read_text(encoding="utf-8") if name else ""
    models = f"read_verilog -sv {name}; " if name else ""
    script = (
        f"{models}read_verilog -sv -nooverwrite {library}; read_json {_NETLIST}; hierarchy -check -top {top}; "
        f"proc; flatten; opt_expr; opt_clean -purge; write_verilog -noattr {_FILE}"
    )

    def make(made: Path) -> None:
        (made / _NETLIST).write_bytes(text)
        if name:
            (made / name).write_text(own, encoding="utf-8")
        run_tool([*command_of(YOSYS), "-q", "-p", script], folder=made, limit_s=limit_s, doing="reading the netlist")
        for each in made.iterdir():
            if each.name != _FILE:
                each.unlink()

    return kept("cells", [version_of(YOSYS), script, own, text.decode()], make, folder)

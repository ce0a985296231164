"""The files of an engine and of a model on it: the netlist's text depends on the engine's shape alone."""

from __future__ import annotations

import hashlib
import re
from importlib import resources
from pathlib import Path

import msgspec
import numpy as np

from stoker.deploy.ir.graph import IntegerGraph
from stoker.deploy.rtl.engine.cycles import sample_cycles
from stoker.deploy.rtl.engine.image import ModelImage
from stoker.deploy.rtl.engine.shape import NUMBER_BITS, EngineShape
from stoker.deploy.rtl.folders import ENGINE, PROGRAM, write_files

TOP = "accelerator"
_UNITS = (
    "engine_turn", "engine_data", "engine_bank", "engine_nest", "engine_array", "engine_requantise", "engine_lanes",
    "engine_rows", "engine_registers", "engine",
)  # fmt: skip
_SHARED = ("adder_tree", "fifo", "credits", "output_fifo")
_PARAMETERS = {
    "LANES": "lanes", "DATA_WORDS": "data_words", "WEIGHT_WORDS": "weight_words", "TABLE_WORDS": "table_words",
    "SCALE_WORDS": "scale_words", "INSTRUCTIONS": "instructions",
}  # fmt: skip
_AXI_LITE = (
    ("input", 8, "awaddr"), ("input", 1, "awvalid"), ("output", 1, "awready"), ("input", 32, "wdata"),
    ("input", 1, "wvalid"), ("output", 1, "wready"), ("output", 2, "bresp"), ("output", 1, "bvalid"),
    ("input", 1, "bready"), ("input", 8, "araddr"), ("input", 1, "arvalid"), ("output", 1, "arready"),
    ("output", 32, "rdata"), ("output", 2, "rresp"), ("output", 1, "rvalid"), ("input", 1, "rready"),
)  # fmt: skip


_INSTANCE = re.compile(r"^    (\w+) #\([^;]*?\) (\w+) \(", re.MULTILINE)


class EngineDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What a folder holds, and what is known of the model on the engine without running it."""

    digest: str
    """Digest of all other files."""
    source: str
    """Digest of the package; empty if it was made from a graph alone."""
    shape: EngineShape
    top: str
    files: tuple[str, ...]
    """SystemVerilog, in an order in which each comes after those that it uses."""
    words_in: int
    """Words of a sample, of 16 bits a lane."""
    words_out: int
    cycles: int
    """From a sample's first word to the next sample's."""
    bytes: int
    """What the model is on the bus."""

    @property
    def fifos(self) -> dict[str, int]:
        """Those in front of joins: none."""
        return {}


def netlist(shape: EngineShape) -> dict[str, str]:
    """The texts of the netlist by file name, in an order in which each comes after those that it uses."""
    here = resources.files("stoker.deploy.rtl")
    found = {f"{name}.sv": here.joinpath("units", f"{name}.sv").read_text(encoding="utf-8") for name in _SHARED}
    for name in _UNITS:
        found[f"{name}.sv"] = here.joinpath("engine", "units", f"{name}.sv").read_text(encoding="utf-8")
    return found | {f"{TOP}.sv": _top(shape)}


def engine_units() -> dict[str, str]:
    """Module of each unit of an engine, by the name of its instance."""
    text = resources.files("stoker.deploy.rtl").joinpath("engine", "units", "engine.sv").read_text(encoding="utf-8")
    return {name: module for module, name in _INSTANCE.findall(text)}


def write_engine(graph: IntegerGraph, image: ModelImage, folder: Path, source: str = "") -> EngineDescription:
    """Writes an engine and a model on it into a folder, in the place of a design that it held.

    Returns the description.

    Args:
        graph: of the model.
        image: of the model on the engine.
        folder: to write into.
        source: digest of the package.

    Raises:
        OSError: the folder cannot be written.
        ValueError: it has a ``design.json`` that is none.
    """
    shape, texts = image.shape, netlist(image.shape)
    # The program: registers and words, both of 32 bits, little end first.
    contents = {name: text.encode() for name, text in texts.items()} | {PROGRAM: program_bytes(image)}
    netlist_alone = EngineDescription(
        digest=_digest(contents), source="", shape=shape, top=TOP, files=tuple(texts), words_in=0, words_out=0,
        cycles=0, bytes=0,
    )  # fmt: skip
    description = described(graph, image, source, netlist_alone)
    text = msgspec.json.format(msgspec.json.encode(description)) + b"\n"
    write_files(folder, contents, ENGINE, text, description.digest)
    return description


def described(graph: IntegerGraph, image: ModelImage, source: str, engine: EngineDescription) -> EngineDescription:
    """An engine's description with a model on it.

    Args:
        graph: of the model.
        image: of the model on the engine.
        source: digest of the package.
        engine: of the same shape, whatever model it has.
    """
    words = [
        sum(-(-graph.value(port).elements // engine.shape.lanes) for port in ports)
        for ports in (graph.inputs, graph.outputs)
    ]  # fmt: skip
    return msgspec.structs.replace(
        engine, source=source, words_in=words[0], words_out=words[1], cycles=sample_cycles(image), bytes=image.bytes
    )  # fmt: skip


def read_engine(folder: Path) -> EngineDescription:
    """The description of an engine whose files are all there and unchanged.

    Raises:
        ValueError: the folder holds none, or files that differ from those that were written.
    """
    try:
        found = msgspec.json.decode((folder / ENGINE).read_bytes(), type=EngineDescription)
        contents = {name: (folder / name).read_bytes() for name in (*found.files, PROGRAM)}
    except (OSError, msgspec.DecodeError) as error:
        raise ValueError(
            f"`{folder}` must hold an engine: {error}; write one with `stoker deploy rtl --structure engine`"
        ) from None
    if _digest(contents) != found.digest:
        raise ValueError(
            f"`{folder}` must hold what was written; write it again with `stoker deploy rtl --structure engine`"
        )
    return found


def is_engine(folder: Path) -> bool:
    """Whether a folder is an engine's."""
    return (folder / ENGINE).exists()


def program_bytes(image: ModelImage) -> bytes:
    """A model's transfers as they are in its file."""
    return np.array(list(image.transfers()), "<u4").tobytes()


def _top(shape: EngineShape) -> str:
    wide = NUMBER_BITS * shape.lanes
    ports = [("input", 1, "aclk"), ("input", 1, "aresetn")]
    for name, forth, back in (("s0_axis", "input", "output"), ("m0_axis", "output", "input")):
        ports += [
            (forth, wide, f"{name}_tdata"),
            (forth, 1, f"{name}_tvalid"),
            (back, 1, f"{name}_tready"),
            (forth, 1, f"{name}_tlast"),
        ]
    ports += [(way, width, f"s_axi_{name}") for way, width, name in _AXI_LITE]
    parameters = ", ".join(f".{name}({getattr(shape, field)})" for name, field in _PARAMETERS.items())
    lines = [
        "// Written by `stoker deploy rtl --structure engine`: an engine of one shape, whatever model runs on it.",
        f"// Words of the streams have {shape.lanes} numbers of {NUMBER_BITS} bits, the first one lowest.",
        f"module {TOP} (",
        ",\n".join(
            f"    {way:<6} logic {'' if width == 1 else f'[{width - 1}:0] '}{name}" for way, width, name in ports
        ),
        ");",
        "    logic rst;",
        "    always_ff @(posedge aclk) rst <= !aresetn;",
        "    engine #(",
        f"        {parameters}",
        "    ) machine (",
        "        .clk(aclk), .rst, .in_data(s0_axis_tdata), .in_valid(s0_axis_tvalid), .in_ready(s0_axis_tready),",
        "        .in_last(s0_axis_tlast), .out_data(m0_axis_tdata), .out_valid(m0_axis_tvalid),",
        "        .out_ready(m0_axis_tready), .out_last(m0_axis_tlast),",
        "        " + ",\n        ".join(
            ", ".join(f".s_axi_{name}" for _, _, name in _AXI_LITE[at : at + 4]) for at in range(0, len(_AXI_LITE), 4)
        ),
        "    );",
        "endmodule",
        "",
    ]  # fmt: skip
    return "\n".join(lines)


def _digest(contents: dict[str, bytes]) -> str:
    """Digest of names and contents, in order of names."""
    found = hashlib.sha256()
    for name in sorted(contents):
        found.update(f"{len(name)}:{name}{len(contents[name])}:".encode() + contents[name])
    return found.hexdigest()

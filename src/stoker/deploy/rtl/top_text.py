"""The top module of a design as text: AXI4-Stream in and out, AXI4-Lite next to them, units and streams between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stoker.deploy.rtl.banks import BANKED
from stoker.deploy.rtl.structure import DesignNode, Structure, WordStream
from stoker.deploy.rtl.update_text import PORTS, end_text, gate_text, loader_text, unit_ports, unit_wires

TOP = "accelerator"
_INDENT = "    "
_AXI_LITE = (
    ("input", 8, "awaddr"), ("input", 1, "awvalid"), ("output", 1, "awready"), ("input", 32, "wdata"),
    ("input", 1, "wvalid"), ("output", 1, "wready"), ("output", 2, "bresp"), ("output", 1, "bvalid"),
    ("input", 1, "bready"), ("input", 8, "araddr"), ("input", 1, "arvalid"), ("output", 1, "arready"),
    ("output", 32, "rdata"), ("output", 2, "rresp"), ("output", 1, "rvalid"), ("input", 1, "rready"),
)  # fmt: skip


def beat_bytes(stream: WordStream) -> int:
    """Bytes of a word on the outside, where each number has whole bytes."""
    return stream.lanes * number_bytes(stream)


def number_bytes(stream: WordStream) -> int:
    """Bytes of a number on the outside: 1, 2 or 4."""
    return next(size for size in (1, 2, 4) if 8 * size >= stream.bits)


def watchdog_cycles(structure: Structure) -> int:
    """Cycles without a move after which a design is stuck: several times what its slowest unit ever works unseen."""
    return 4 * structure.cycles + 1000


def top_text(structure: Structure, digest: str) -> str:
    """SystemVerilog of the top module.

    Args:
        structure: of the design.
        digest: of what it was made from, in hexadecimal; its first 32 bits can be read from the design.
    """
    return "\n".join([*_head(structure), *_body(structure, digest), "endmodule", ""])


def _head(structure: Structure) -> Iterator[str]:
    yield "// Written by `stoker deploy rtl` from an integer graph; each unit has its file."
    yield f"// A sample takes {structure.cycles:,} cycles in a full pipeline, on {structure.multipliers:,} multipliers."
    for kind, ends in (("s", structure.inputs), ("m", structure.outputs)):
        for at, end in enumerate(ends):
            stream = structure.stream(end)
            yield (
                f"// {kind}{at}_axis: `{end.port}`, {stream.words:,} words of {stream.lanes} x {stream.bits} bits, "
                f"each number in {number_bytes(stream)} bytes."
            )
    if structure.updatable:
        yield "// w_axis: an update, words of 32 bits; `registers.sv` says where its state can be read."
    yield f"module {TOP} ("
    ports = [_port("input", 1, "aclk"), _port("input", 1, "aresetn")]
    for at, end in enumerate(structure.inputs):
        ports += _stream_ports(f"s{at}_axis", structure.stream(end), "input", "output")
    for at, end in enumerate(structure.outputs):
        ports += _stream_ports(f"m{at}_axis", structure.stream(end), "output", "input")
    if structure.updatable:
        ports += [_port(way, width, name) for way, width, name in PORTS]
    ports += [_port(way, width, f"s_axi_{name}") for way, width, name in _AXI_LITE]
    yield ",\n".join(_INDENT + port for port in ports)
    yield ");"


def _body(structure: Structure, digest: str) -> Iterator[str]:
    yield f"{_INDENT}logic rst;"
    yield f"{_INDENT}always_ff @(posedge aclk) rst <= !aresetn;"
    if structure.updatable:
        yield from loader_text(structure)
    for node in structure.nodes.values():
        yield ""
        yield from _node(structure, node)
    yield ""
    yield from _ends(structure)
    if structure.updatable:
        yield from end_text(structure)
    yield from _registers(structure, digest)


def _node(structure: Structure, node: DesignNode) -> Iterator[str]:
    """A node's stream, its unit, and the branches of its stream if several read it."""
    name, stream = node.name, node.stream
    if node.layer:
        yield f"{_INDENT}// {node.layer}" + (f": {node.cycles:,} cycles a sample" if node.module else "")
    yield f"{_INDENT}logic [{stream.width - 1}:0] {name}_data;"
    yield f"{_INDENT}logic {name}_valid, {name}_ready;"
    if node.module:
        yield from _instance(structure, node)
    readers = structure.readers(name)
    if not readers:
        yield f"{_INDENT}assign {name}_ready = 1'b1;  // nothing reads it"
        yield f"{_INDENT}logic {name}_unused;"
        yield f"{_INDENT}assign {name}_unused = &{{1'b0, {name}_data}};"
    if len(readers) > 1:
        count = len(readers)
        yield f"{_INDENT}logic [{stream.width - 1}:0] {name}_all_data;"
        yield f"{_INDENT}logic [{count - 1}:0] {name}_all_valid, {name}_all_ready;"
        yield f"{_INDENT}fork_stream #(.W({stream.width}), .READERS({count})) {name}_fork ("
        yield f"{_INDENT * 2}.clk(aclk), .rst, .in_data({name}_data), .in_valid({name}_valid), .in_ready({name}_ready),"
        yield (f"{_INDENT * 2}.out_data({name}_all_data), .out_valid({name}_all_valid), .out_ready({name}_all_ready)")
        yield f"{_INDENT});"


def _instance(structure: Structure, node: DesignNode) -> Iterator[str]:
    given = ", ".join(
        f".{key}({_literal(value)})" for key, value in node.parameters.items()
    )  # fmt: skip
    letters = ("in",) if node.module not in ("add_unit", "concat_stream") else ("a", "b")
    ports = [".clk(aclk)", ".rst"]
    if structure.updatable and node.module in BANKED:
        yield unit_wires(node)
        ports += unit_ports(structure, node)
    for at, letter in enumerate(letters):
        if at < len(node.sources):
            data, valid, ready = _branch(structure, node.sources[at], (node.name, at))
            ports += [f".{letter}_data({data})", f".{letter}_valid({valid})", f".{letter}_ready({ready})"]
        else:
            yield f"{_INDENT}logic {node.name}_unused_ready;"
            ports += [f".{letter}_data('0)", f".{letter}_valid(1'b0)", f".{letter}_ready({node.name}_unused_ready)"]
    ports += [f".out_data({node.name}_data)", f".out_valid({node.name}_valid)", f".out_ready({node.name}_ready)"]
    yield f"{_INDENT}{node.module} #("
    yield from _wrapped(given, 2)
    yield f"{_INDENT}) {node.name} ("
    yield from _wrapped(", ".join(ports), 2)
    yield f"{_INDENT});"


def _branch(structure: Structure, name: str, reader: tuple[str, int]) -> tuple[str, str, str]:
    """Names of data, valid and ready of a stream as one of its readers sees it."""
    readers = structure.readers(name)
    if len(readers) == 1:
        return f"{name}_data", f"{name}_valid", f"{name}_ready"
    at = readers.index(reader)
    return f"{name}_all_data", f"{name}_all_valid[{at}]", f"{name}_all_ready[{at}]"


def _ends(structure: Structure) -> Iterator[str]:
    """Inputs and outputs: whole bytes outside, ends of samples checked and set."""
    for at, end in enumerate(structure.inputs):
        stream, port = structure.stream(end), f"s{at}_axis"
        wide = 8 * number_bytes(stream)
        for lane in range(stream.lanes):
            low = lane * stream.bits
            yield (
                f"{_INDENT}assign {stream.name}_data[{low + stream.bits - 1}:{low}] = "
                f"{port}_tdata[{lane * wide + stream.bits - 1}:{lane * wide}];"
            )
        yield f"{_INDENT}logic s{at}_end;"
        if structure.updatable:
            yield from gate_text(at, stream.name, port)
        else:
            yield f"{_INDENT}assign {stream.name}_valid = {port}_tvalid;"
            yield f"{_INDENT}assign {port}_tready = {stream.name}_ready;"
        yield _beats(f"s{at}", stream.words, f"{port}_tvalid && {port}_tready")
        if wide > stream.bits:
            yield f"{_INDENT}logic s{at}_unused;"
            yield f"{_INDENT}assign s{at}_unused = &{{1'b0, {port}_tdata}};"
    for at, end in enumerate(structure.outputs):
        stream, port = structure.stream(end), f"m{at}_axis"
        data, valid, ready = _branch(structure, end.stream, ("", at))
        fill = 8 * number_bytes(stream) - stream.bits
        for lane in range(stream.lanes):
            wide, low = 8 * number_bytes(stream), lane * stream.bits
            sign = f"{data}[{low + stream.bits - 1}]" if stream.signed else "1'b0"
            number = f"{data}[{low + stream.bits - 1}:{low}]"
            whole = f"{{{{{fill}{{{sign}}}}}, {number}}}" if fill else number
            yield f"{_INDENT}assign {port}_tdata[{(lane + 1) * wide - 1}:{lane * wide}] = {whole};"
        yield f"{_INDENT}assign {port}_tvalid = {valid};"
        yield f"{_INDENT}assign {ready} = {port}_tready;"
        yield _beats(f"m{at}", stream.words, f"{port}_tvalid && {port}_tready", f"{port}_tlast")


def _registers(structure: Structure, digest: str) -> Iterator[str]:
    ins, outs = range(len(structure.inputs)), range(len(structure.outputs))
    moves = [
        *(f"{name}_valid && {name}_ready" for name in structure.nodes if len(structure.readers(name)) < 2),
        *(f"|({name}_all_valid & {name}_all_ready)" for name in structure.nodes if len(structure.readers(name)) > 1),
    ]
    full = [f"!{_branch(structure, structure.nodes[name].sources[0], (name, 0))[2]}" for name in structure.fifos]
    wrong = [f"(s{at}_axis_tvalid && s{at}_axis_tready && s{at}_axis_tlast != s{at}_end)" for at in ins]
    sums = {
        "moved": [f"({move})" for move in moves],
        "misplaced": wrong,
        "in_waits": [f"(s{at}_axis_tvalid && !s{at}_axis_tready)" for at in ins],
        "out_waits": [f"(m{at}_axis_tvalid && !m{at}_axis_tready)" for at in outs],
    }
    yield f"{_INDENT}logic {', '.join(sums)};"
    for name, terms in sums.items():
        yield f"{_INDENT}assign {name} ="
        yield from _wrapped(" || ".join(terms) + ";", 2, " || ")
    count = max(1, len(full))
    yield f"{_INDENT}logic [{count - 1}:0] full;"
    for at, term in enumerate(full or ["1'b0"]):
        yield f"{_INDENT}assign full[{at}] = {term};"
    limit = watchdog_cycles(structure)
    own = "" if structure.updatable else f".DIGEST(32'h{digest[:8]}), "
    yield f"{_INDENT}registers #({own}.LIMIT(32'd{limit}), .FIFOS({count})) control ("
    more = [".digest(digests[(change[16] ? 32 : 0) +: 32])", ".facts(update_facts)"] if structure.updatable else []
    ports = [
        ".clk(aclk)", ".rst", *more, ".sample_in(s0_axis_tvalid && s0_axis_tready && s0_end)",
        ".sample_out(m0_axis_tvalid && m0_axis_tready && m0_axis_tlast)", ".in_waits", ".out_waits", ".misplaced",
        ".moved", ".full", *(f".s_axi_{name}" for _, _, name in _AXI_LITE),
    ]  # fmt: skip
    yield from _wrapped(", ".join(ports), 2)
    yield f"{_INDENT});"


def _beats(name: str, words: int, step: str, last: str = "") -> str:
    """A counter of a sample's words."""
    return (
        f"{_INDENT}counter #(.COUNT({words})) {name}_words "
        f"(.clk(aclk), .rst, .step({step}), .last({last or name + '_end'}));"
    )


def _stream_ports(name: str, stream: WordStream, forth: str, back: str) -> list[str]:
    return [
        _port(forth, 8 * beat_bytes(stream), f"{name}_tdata"), _port(forth, 1, f"{name}_tvalid"),
        _port(back, 1, f"{name}_tready"), _port(forth, 1, f"{name}_tlast"),
    ]  # fmt: skip


def _port(way: str, width: int, name: str) -> str:
    return f"{way:<6} logic {'' if width == 1 else f'[{width - 1}:0] '}{name}"


def _literal(value: int | str) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def _wrapped(text: str, depth: int, mark: str = ", ") -> Iterator[str]:
    """Lines of at most 120 characters, broken after commas or operators."""
    line = ""
    parts: Sequence[str] = text.split(mark)
    for at, part in enumerate(parts):
        piece = part + (mark.rstrip() if at + 1 < len(parts) else "")
        if line and len(_INDENT) * depth + len(line) + 1 + len(piece) > 120:
            yield _INDENT * depth + line
            line = piece
        else:
            line = f"{line} {piece}" if line else piece
    yield _INDENT * depth + line

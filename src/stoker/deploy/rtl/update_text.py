"""What the top module of an updatable design has more: an update's stream, its loader, the chain through the units."""

from __future__ import annotations

from collections.abc import Iterator

from stoker.deploy.rtl.banks import BANKED, chain_cycles, settle_cycles, update_words
from stoker.deploy.rtl.structure import DesignNode, Structure

DIGEST_FILE = "digest.hex"
SWITCH_CYCLES = 12
"""From the last word in its memory until samples are let in again: inputs held, the change told to the units."""
PORTS = (
    ("input", 32, "w_axis_tdata"), ("input", 1, "w_axis_tvalid"), ("output", 1, "w_axis_tready"),
    ("input", 1, "w_axis_tlast"),
)  # fmt: skip
_INDENT = "    "


def loader_text(structure: Structure) -> Iterator[str]:
    """The loader, and the digest of the model in use, the first of the chain."""
    inputs = len(structure.inputs)
    yield ""
    yield f"{_INDENT}// Updates: the chain through all memories, the bank to read and from which sample on."
    yield f"{_INDENT}logic [33:0] update, digest_update;"
    yield f"{_INDENT}logic [16:0] change;"
    yield f"{_INDENT}logic [127:0] update_facts;"
    yield f"{_INDENT}logic [{inputs - 1}:0] begins;"
    yield f"{_INDENT}logic hold, switched;"
    yield f"{_INDENT}logic [63:0] digests;"
    yield (
        f"{_INDENT}update_loader #(.INPUTS({inputs}), .WORDS({len(update_words(structure, '0'))}), "
        f".CHAIN({chain_cycles(structure)}), .SETTLE({settle_cycles(structure)})) loader ("
    )
    yield f"{_INDENT * 2}.clk(aclk), .rst, .w_axis_tdata, .w_axis_tvalid, .w_axis_tready, .w_axis_tlast, .begins,"
    yield f"{_INDENT * 2}.hold, .update, .change, .switched, .facts(update_facts)"
    yield f"{_INDENT});"
    yield f'{_INDENT}bank_word #(.W(32), .FILE("{DIGEST_FILE}")) digest ('
    yield f"{_INDENT * 2}.clk(aclk), .rst, .update, .update_on(digest_update), .shadow(!change[16]), .words(digests)"
    yield f"{_INDENT});"


def unit_wires(node: DesignNode) -> str:
    """Declares what leaves a unit on the chain."""
    return f"{_INDENT}logic [33:0] {node.name}_update;\n{_INDENT}logic {node.name}_bank;"


def unit_ports(structure: Structure, node: DesignNode) -> list[str]:
    """A unit's ports on the chain, which it takes from the unit with memories before it."""
    chain = [name for name, each in structure.nodes.items() if each.module in BANKED]
    at = chain.index(node.name)
    before = f"{chain[at - 1]}_update" if at else "digest_update"
    return [f".update({before})", f".update_on({node.name}_update)", ".change", f".bank({node.name}_bank)"]


def end_text(structure: Structure) -> Iterator[str]:
    """The end of the chain, and whether all units have switched."""
    chain = [name for name, each in structure.nodes.items() if each.module in BANKED]
    banks = ", ".join(f"{name}_bank" for name in chain)
    yield f"{_INDENT}logic [{len(chain) - 1}:0] banks;"
    yield f"{_INDENT}assign banks = {{{banks}}};"
    yield f"{_INDENT}always_ff @(posedge aclk) switched <= banks == {{{len(chain)}{{change[16]}}}};"
    yield f"{_INDENT}logic unused_chain;"
    yield f"{_INDENT}assign unused_chain = &{{1'b0, {chain[-1]}_update}};"


def gate_text(at: int, name: str, port: str) -> Iterator[str]:
    """The gate of an input, in place of its handshake."""
    yield f"{_INDENT}sample_gate s{at}_gate ("
    yield f"{_INDENT * 2}.clk(aclk), .rst, .hold, .last(s{at}_end), .in_valid({port}_tvalid), .in_ready({port}_tready),"
    yield f"{_INDENT * 2}.out_valid({name}_valid), .out_ready({name}_ready), .begins(begins[{at}])"
    yield f"{_INDENT});"

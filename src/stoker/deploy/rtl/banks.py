"""Structures whose numbers can change while they run: what comes from the weights lies in memories of two banks.

A unit's constants (shift, zero points, ends, paddings, factors of sums) become words of such memories too, and
accumulators are as wide as any weights need: so nothing that a training decides is in the circuit. An update is the
memories' contents, in the order of the chain that goes through them (``units/chain_tap.sv``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from stoker.deploy.rtl.flow import RowFlow, ThroughFlow
from stoker.deploy.rtl.structure import DesignNode, MemoryFile, Parameter, Structure

BANKED = ("matrix_unit", "pool_unit", "add_unit", "table_unit", "lookup_unit")
"""Units that have memories."""
_LAW_CYCLES_MORE = 2
"""Steps of a requantiser that shifts by any number, beyond those of one that does not."""
_SETTLE = 48
"""Cycles from a unit's last old piece of work to its last read of the old bank, but for words that leave in turn."""
_PIECE = 32
_ORDER = ("pads", "terms", "weights", "biases", "entries", "factors", "law")
"""Order of a unit's memories in the chain."""


def with_banks(structure: Structure) -> Structure:
    """A structure with two banks of all that comes from weights; before its FIFOs are added.

    Args:
        structure: as it was lowered.
    """
    nodes = {name: _banked(node) if node.module in BANKED else node for name, node in structure.nodes.items()}
    return replace(structure, nodes=nodes, updatable=True)


def update_words(structure: Structure, digest: str) -> list[int]:
    """Words of 32 bits that bring a structure's numbers into a design like it.

    Args:
        structure: with banks.
        digest: of the package, in hexadecimal; the first 32 bits can be read from the design.
    """
    words = [int(digest[:8], 16)]
    for memory in _memories(structure):
        pieces = -(-memory.bits // _PIECE)
        words += [word >> (_PIECE * at) & 0xFFFFFFFF for word in memory.words for at in range(pieces)]
    return words


def chain_cycles(structure: Structure) -> int:
    """Cycles in which a word surely has reached the last memory: a register each, and those at the ends."""
    return len(_memories(structure)) + 8


def settle_cycles(structure: Structure) -> int:
    """Cycles from the switch of the last unit until nothing reads the other bank."""
    return _SETTLE + max((int(node.parameters.get("BEATS", 1)) for node in structure.nodes.values()), default=1)


def _memories(structure: Structure) -> list[MemoryFile]:
    return [memory for node in structure.nodes.values() for memory in node.memories.values()]


def _banked(node: DesignNode) -> DesignNode:
    """A unit with its constants in memories."""
    parameters = dict(node.parameters)
    kinds = {_kind(file): memory for file, memory in node.memories.items()}
    flow, more = node.flow, 0
    if "SHIFT" in parameters:
        kinds["law"] = _law(parameters)
        more = _LAW_CYCLES_MORE * int(parameters.get("BEATS", 1))
    if node.module in ("matrix_unit", "pool_unit"):
        kinds["pads"] = _fields((int(parameters.pop("PAD")), int(parameters["IN_W"])))
        parameters.pop("IN_ZERO", None)  # is the padding of a sum
    if node.module == "add_unit":
        kinds["terms"] = _terms(parameters)
    if node.module in ("add_unit", "table_unit"):
        parameters["SAMPLE"] = node.stream.words
    if node.module in ("matrix_unit", "lookup_unit"):
        assert isinstance(flow, RowFlow), "it looks at windows"
        parameters["IMAGES"] = flow.windows.images
    if "ACC_W" in parameters and not parameters.get("LARGEST") and parameters.get("SUMMED", 1):
        before = int(parameters["ACC_W"])
        parameters["ACC_W"] = width = max(before, _any_sum(node.module, parameters).bit_length() + 1)
        if "biases" in kinds:
            kinds["biases"] = _wider(kinds["biases"], before, width)
    parameters["DEPTH"] = int(parameters["DEPTH"]) + more
    if isinstance(flow, (RowFlow, ThroughFlow)):
        flow = replace(flow, depth=flow.depth + more)
    names = {kind: f"{node.name}_{kind}.hex" for kind in _ORDER if kind in kinds}
    return replace(
        node, flow=flow, parameters={**parameters, **{kind.upper(): name for kind, name in names.items()}},
        memories={name: kinds[kind] for kind, name in names.items()},
    )  # fmt: skip


def _any_sum(module: str, parameters: Mapping[str, Parameter]) -> int:
    """The largest size of a sum, whatever weights, scales and zero points are; biases as large as the products."""
    numbers = {name: value for name, value in parameters.items() if isinstance(value, int)}
    if module == "add_unit":
        if numbers["ONE"]:
            return 2 ** numbers["A_W"]
        return 2**16 * (2 ** numbers["A_W"] + 2 ** numbers["B_W"])
    if module == "pool_unit":
        return numbers["KERNEL_Y"] * numbers["KERNEL_X"] * 2 ** numbers["IN_W"]
    if module == "lookup_unit":
        return numbers["COUNT"] * 2 ** (numbers["ENTRY_W"] - 1)
    terms = numbers["KERNEL_Y"] * numbers["KERNEL_X"]
    if not numbers["OWN"]:
        terms *= numbers["WORDS"] // numbers["GROUPS"] * numbers["LANES"]
    largest = 2 ** (numbers["IN_W"] - numbers["IN_SIGNED"])
    return 2 * terms * largest * 2 ** (numbers["WEIGHT_W"] - 1)


def _law(parameters: dict[str, Parameter]) -> MemoryFile:
    """A requantiser's numbers, in the order in which ``requantise.sv`` takes its word apart."""
    bits = int(parameters["OUT_W"])
    shift, zero, low, high = (int(parameters.pop(name)) for name in ("SHIFT", "ZERO", "LOW", "HIGH"))
    return _fields((shift, 6), (zero, bits), (low, bits), (high, bits), (low - zero, bits + 2), (high - zero, bits + 2))


def _terms(parameters: dict[str, Parameter]) -> MemoryFile:
    """What an addition takes from its inputs and multiplies them by."""
    widths = [int(parameters.get(f"{letter}_W", 8)) for letter in "AB"]
    zeros, by = ([int(parameters.pop(f"{letter}_{name}", 0)) for letter in "AB"] for name in ("ZERO", "BY"))
    return _fields(
        *((zero, width + 1) for zero, width in zip(zeros, widths, strict=True)), *((each, 17) for each in by)
    )


def _fields(*fields: tuple[int, int]) -> MemoryFile:
    """One word of numbers with their bits, the first lowest."""
    word = at = 0
    for number, bits in fields:
        word |= (number & ((1 << bits) - 1)) << at
        at += bits
    return MemoryFile(bits=at, words=(word,))


def _wider(memory: MemoryFile, before: int, after: int) -> MemoryFile:
    """The same signed numbers in more bits."""
    count = memory.bits // before
    return MemoryFile(
        bits=count * after,
        words=tuple(
            _fields(*((_signed(word >> (at * before), before), after) for at in range(count))).words[0]
            for word in memory.words
        ),
    )


def _signed(word: int, bits: int) -> int:
    low = word & ((1 << bits) - 1)
    return low - (1 << bits) if low >> (bits - 1) else low


def _kind(file: str) -> str:
    """What a memory holds, by the name of its file."""
    return file.removesuffix(".hex").rpartition("_")[2]

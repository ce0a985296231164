"""A netlist with three pins: chains of registers take the place of what would be around a design.

A design may have more ports than a part has pins, and on a board most of them end inside the part. So each input comes
out of a register, and each output goes into one: paths to and from them are timed, and cells of the chains are known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from stoker.deploy.tools.devices import Fpga

_CLOCK = "aclk"
_XOR = f"{0x6666:016b}"
"""A lookup table of the first two of its four inputs."""
_OF_ECP5 = {
    "CEMUX": "1 ", "CLKMUX": "CLK", "GSR": "DISABLED", "LSRMUX": "LSR", "REGSET": "RESET", "SRMODE": "LSR_OVER_CE"
}  # fmt: skip
"""Parameters of a register without enable and reset; a text of noughts and ones has a blank behind it, by yosys."""


def needs_chains(netlist: bytes, part: Fpga) -> bool:
    """Whether a design has more bits of ports than a part has pins for.

    Args:
        netlist: of yosys, flat, as JSON.
        part: on which it is placed.
    """
    return sum(len(port["bits"]) for port in _top(msgspec.json.decode(netlist))["ports"].values()) > part.pins


def with_three_pins(netlist: bytes, part: Fpga) -> tuple[bytes, int]:
    """A netlist of yosys whose ports are a clock, an input and an output; and the logic cells of the chains.

    Args:
        netlist: flat, as JSON.
        part: on which it is placed.
    """
    whole: dict[str, Any] = msgspec.json.decode(netlist)
    top = _top(whole)
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
        cells[f"$chain$in{at}"] = _register(part, clock, before, bit)
        before = bit
    before = "0"
    for at, bit in enumerate(outputs):
        mixed, held = fresh.bit(), fresh.bit()
        cells[f"$chain$mix{at}"] = _mixing(part, bit, before, mixed)
        cells[f"$chain$out{at}"] = _register(part, clock, mixed, held)
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


def _top(netlist: Mapping[str, Any]) -> Any:
    return next(each for each in netlist["modules"].values() if _true(each["attributes"].get("top")))


def _mixing(part: Fpga, first: Any, second: Any, mixed: Any) -> dict[str, Any]:
    """A lookup table that depends on both."""
    if part.family == "ecp5":
        reads = {"A": first, "B": second, "C": "0", "D": "0"}
        return _cell("LUT4", {"INIT": _XOR}, reads, {"Z": mixed})
    return _cell("SB_LUT4", {"LUT_INIT": _XOR}, {"I0": first, "I1": second, "I2": "0", "I3": "0"}, {"O": mixed})


def _register(part: Fpga, clock: Any, given: Any, held: Any) -> dict[str, Any]:
    if part.family == "ecp5":
        return _cell("TRELLIS_FF", _OF_ECP5, {"CLK": clock, "DI": given, "LSR": "0"}, {"Q": held})
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

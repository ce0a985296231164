"""Chains of registers in place of pins: ports become three, what is added is counted, the design stays as it is."""

import json

from stoker.deploy.tools.devices import fpga
from stoker.deploy.tools.pins import needs_chains, with_three_pins

CELL = {
    "hide_name": 0, "type": "SB_DFF", "parameters": {}, "attributes": {},
    "port_directions": {"C": "input", "D": "input", "Q": "output"}, "connections": {"C": [2], "D": [3], "Q": [7]},
}  # fmt: skip
MODULE = {
    "attributes": {"top": "00000000000000000000000000000001"},
    "ports": {
        "aclk": {"direction": "input", "bits": [2]}, "given": {"direction": "input", "bits": [3, 4]},
        "found": {"direction": "output", "bits": [7, "0", 3]},
    },
    "cells": {"own": CELL},
    "netnames": {"aclk": {"hide_name": 0, "bits": [2], "attributes": {}}},
}  # fmt: skip


def test_ports_become_a_chain_in_and_a_chain_out() -> None:
    netlist = json.dumps({"modules": {"cells": {"attributes": {}}, "accelerator": MODULE}}).encode()
    data, cells = with_three_pins(netlist, fpga("ice40-hx8k"))
    made = json.loads(data)["modules"]["accelerator"]
    assert {name: port["direction"] for name, port in made["ports"].items()} == {
        "aclk": "input", "chain_in": "input", "chain_out": "output",
    }  # fmt: skip
    assert cells == 4  # two inputs, and the two outputs that are no constants
    assert made["cells"].pop("own") == CELL
    by_kind = {
        kind: [each for each in made["cells"].values() if each["type"] == kind] for kind in ("SB_DFF", "SB_LUT4")
    }
    assert len(by_kind["SB_DFF"]) == 4
    assert [each["connections"]["I0"] for each in by_kind["SB_LUT4"]] == [[7], [3]]
    assert all(each["connections"]["C"] == [2] for each in by_kind["SB_DFF"])
    drivers = [
        bit for each in made["cells"].values() for bit in each["connections"].get("Q", each["connections"].get("O"))
    ]
    assert len(set(drivers)) == len(drivers)
    assert {3, 4} <= set(drivers)  # inputs come out of registers
    assert made["ports"]["chain_in"]["bits"][0] not in drivers
    assert made["ports"]["chain_out"]["bits"][0] in drivers


def test_on_ecp5_chains_are_of_its_cells_and_come_where_pins_are_few() -> None:
    part = fpga("ecp5-25k")
    netlist = json.dumps({"modules": {"accelerator": MODULE}}).encode()
    assert not needs_chains(netlist, part)
    wide = MODULE | {"ports": MODULE["ports"] | {"found": {"direction": "output", "bits": list(range(3, 200))}}}
    assert needs_chains(json.dumps({"modules": {"accelerator": wide}}).encode(), part)
    data, cells = with_three_pins(netlist, part)
    made = json.loads(data)["modules"]["accelerator"]["cells"]
    kinds = [each["type"] for name, each in made.items() if name != "own"]
    assert (kinds.count("TRELLIS_FF"), kinds.count("LUT4"), cells) == (4, 2, 4)

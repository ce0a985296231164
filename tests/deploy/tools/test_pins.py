"""Chains of registers in place of pins: ports become three, what is added is counted, the design stays as it is."""

import json

from stoker.deploy.tools.pins import with_three_pins

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
    data, cells = with_three_pins(netlist)
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

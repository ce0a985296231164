"""Tables on the host: outputs stay the law's wherever the cut is, and the cut costs the fewest bytes."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.deploy.engines.law import NumpyEngine
from stoker.deploy.hardware.designing import chosen_foldings, design
from stoker.deploy.hardware.host_inputs import device_inputs
from stoker.deploy.hardware.verification import random_samples, verify
from stoker.deploy.ir.checking import checked
from stoker.deploy.ir.host_tables import TableDemand, device_graph, on_host, tables_of
from tests.deploy.hardware.live import needs_verilator
from tests.deploy.rtl.nets import NetBuilder, tower


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_host_and_device_together_are_the_law(count: int) -> None:
    graph = tower(3)
    names = [each.layer for each in tables_of(graph)]
    assert len(names) == 3
    inputs = random_samples(graph, 16, 0)
    (law,) = NumpyEngine(graph).integers(inputs).values()
    for tables in itertools.combinations(names, count):
        device = checked(device_graph(graph, tables))
        sent = device_inputs(graph, tables, inputs)
        assert set(sent) == {port.value for port in device.inputs}
        assert len(tables_of(device)) == len(names) - count
        (found,) = NumpyEngine(device).integers(sent).values()
        assert np.array_equal(found, law)


def test_what_a_table_takes() -> None:
    net = NetBuilder(0)
    rows, bag = net.rows((), 6, num_rows=11), net.rows((5,), 8, num_rows=7, bag=True)
    graph = net.graph(net.dense(rows, 2), bag)
    (first,) = tables_of(graph)  # the other's rows are an output of the model
    assert (first.layer, first.rows, first.size, first.bits) == (rows, 11, 6, 11 * 6 * 8)
    assert (first.chip_bytes, first.host_bytes) == (4, 6)
    with pytest.raises(ValueError, match=rf"`host_tables` must name tables of {rows}, got {bag}"):
        device_graph(graph, [bag])


def table(at: int, bits: int, more: int) -> TableDemand:
    return TableDemand(layer=f"t{at}", rows=1, size=1, bits=bits, chip_bytes=4, host_bytes=4 + more)


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(-3, 30)), min_size=1, max_size=7), st.integers(0, 200))
def test_the_cut_is_the_best_of_all(demands: list[tuple[int, int]], room: int) -> None:
    tables = [table(at, bits, more) for at, (bits, more) in enumerate(demands)]

    def cost(names: tuple[str, ...]) -> int:
        return sum(max(1, each.host_bytes - each.chip_bytes) for each in tables if each.layer in names)

    def fits(names: tuple[str, ...]) -> bool:
        return sum(each.bits for each in tables if each.layer not in names) <= room

    every = [each.layer for each in tables]
    subsets = [chosen for size in range(len(every) + 1) for chosen in itertools.combinations(every, size)]
    found = tuple(on_host(tables, room))
    assert fits(found)
    assert cost(found) == min(cost(names) for names in subsets if fits(names))


@pytest.mark.integration
@needs_verilator
@pytest.mark.slow("compiles a simulator")
def test_a_simulated_design_with_tables_on_the_host_gives_the_laws_outputs(tmp_path: Path) -> None:
    graph = tower(3)
    first, _, bag = (each.layer for each in tables_of(graph))
    found = design(graph, chosen_foldings(graph), tmp_path / "design", host_tables=[first, bag])
    assert [each.layer for each in found.tables if each.on_host] == [first, bag]
    verified = verify(graph, tmp_path / "design", random_samples(graph, 24, 0))
    assert verified.equal

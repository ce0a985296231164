"""Changes of bits by unit: those that stay change less than those that alternate; recorded counts are read right."""

from pathlib import Path

import numpy as np
import pytest

from stoker.core.errors import ToolError
from stoker.deploy.hardware.activity import activity, engine_activity
from stoker.deploy.hardware.designing import chosen_foldings
from stoker.deploy.hardware.engines import write_model
from stoker.deploy.hardware.verification import random_samples
from stoker.deploy.rtl.engine.compiling import least_engine
from stoker.deploy.rtl.engine.files import engine_units
from stoker.deploy.rtl.generate import write_design
from stoker.deploy.rtl.mapping import lower
from stoker.deploy.tools.activity import counted
from stoker.records.deploy.hardware import DesignActivity
from tests.deploy.hardware.live import needs_verilator
from tests.deploy.rtl.nets import NetBuilder

SAMPLES = 24


def _point(instance: str, signal: str, count: int, page: str = "v_toggle/unit") -> str:
    return f"C '\x01f\x02unit.sv\x01l\x021\x01page\x02{page}\x01o\x02{signal}\x01h\x02TOP.{instance}' {count}\n"


def test_counts_are_by_instance_without_clocks() -> None:
    text = "# SystemC::Coverage-3\n" + "".join(
        (
            _point("accelerator", "u0_data[3]:0->1", 5),
            _point("accelerator.u1_v1", "take:1->0", 7),
            _point("accelerator.u1_v1.lines.rows", "count[0]:0->1", 11),
            _point("accelerator.u1_v1.lines", "clk:0->1", 1000),
            _point("accelerator.u2_v2", "rst:0->1", 1000),
            _point("accelerator.u2_v2", "result:0->1", 13),
            _point("accelerator.u2_v2", "entries[3][1]:0->1", 1000),
            _point("accelerator.u2_v2", "block", 1000, page="v_line/unit"),
        )
    )
    assert counted(text, "accelerator") == {"": 5, "u1_v1": 18, "u2_v2": 13}
    with pytest.raises(ToolError, match="must count changes of bits"):
        counted("# SystemC::Coverage-3\n", "accelerator")


@pytest.mark.integration
@pytest.mark.slow("compiles a simulator that counts")
@needs_verilator
def test_what_stays_changes_less_than_what_alternates(tmp_path: Path) -> None:
    net = NetBuilder(0)
    source = net.input((4,), 4)
    graph = net.graph(net.add(net.dense(source, 4, 4, weight_bits=4), net.table(source, 4), 4))
    structure = lower(graph, chosen_foldings(graph, multipliers=2))
    write_design(structure, tmp_path / "design")
    inputs = {
        "constant": {source: np.zeros((SAMPLES, 4), np.int32)},
        "alternating": {source: np.tile(np.array([[7, -8, 7, -8], [-8, 7, -8, 7]], np.int32), (SAMPLES // 2, 1))},
        "random": random_samples(graph, SAMPLES, 0),
    }
    found = {
        name: activity(structure, tmp_path / "design", each, kept_in=tmp_path / "kept")
        for name, each in inputs.items()
    }  # fmt: skip
    for each in found.values():
        assert sum(unit.share_frac for unit in each.units) == pytest.approx(1)
        assert sum(unit.changes for unit in each.units) == pytest.approx(each.changes)
        assert [unit.kind for unit in each.units if unit.layer] == ["matrix_unit", "table_unit", "add_unit"]
        assert all(unit.changes > 0 for unit in each.units)
    least, most = found["constant"], found["alternating"]
    assert least.changes < 0.7 * most.changes
    assert all(one.changes <= two.changes for one, two in zip(least.units, most.units, strict=True))
    again = activity(structure, tmp_path / "design", inputs["random"], kept_in=tmp_path / "kept")
    assert again == found["random"]


def test_units_of_an_engine_are_those_of_its_text() -> None:
    units = engine_units()
    assert units["multipliers"] == "engine_array"
    assert units["law"] == "engine_requantise"
    assert [name for name, module in units.items() if module == "engine_bank"] == [
        "program_bank", "weight_bank", "table_bank", "scale_bank"
    ]  # fmt: skip
    assert len(units) == 15


@pytest.mark.integration
@pytest.mark.slow("compiles a simulator that counts")
@needs_verilator
def test_what_changes_in_an_engine_is_counted_from_the_first_sample_on(tmp_path: Path) -> None:
    net = NetBuilder(0)
    source = net.input((4,), 4)
    graph = net.graph(net.dense(source, 4, 4, weight_bits=4))
    write_model(graph, least_engine(graph, 2).shape, tmp_path / "engine")
    alternating = np.tile(np.array([[7, -8, 7, -8], [-8, 7, -8, 7]], np.int32), (SAMPLES, 1))

    def counted_of(numbers: np.ndarray) -> DesignActivity:
        return engine_activity(graph, tmp_path / "engine", {source: numbers}, kept_in=tmp_path / "kept")

    found, constant = counted_of(alternating), counted_of(np.zeros((SAMPLES, 4), np.int32))
    assert found.samples == 16  # of more that were sent
    assert sum(unit.share_frac for unit in found.units) == pytest.approx(1)
    assert sum(unit.changes for unit in found.units) == pytest.approx(found.changes)
    changes = {unit.unit: unit.changes for unit in found.units}
    assert set(changes) == {*engine_units(), ""}
    assert all(changes[name] > 0 for name in ("multipliers", "lanes", "law", "data", "weight_bank", ""))
    by_constant = {unit.unit: unit.changes for unit in constant.units}
    assert by_constant["multipliers"] < changes["multipliers"]
    # As many in each sample, however many: loading the model would change them much.
    assert counted_of(alternating[:8]).changes == pytest.approx(found.changes, rel=0.1)

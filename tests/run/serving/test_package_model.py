"""Packages of integer models behind the protocol of engines: both engines, and the law's numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stoker.core.errors import PackageError
from stoker.deploy.engines.law import NumpyEngine
from stoker.deploy.package.folder import write_package
from stoker.run.serving.loading import load
from stoker.run.serving.sources import ModelForm, chosen_forms, forms_of
from stoker.serve.engine import ANY
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


def test_a_damaged_package_is_refused(tmp_path: Path) -> None:
    write_package(tmp_path / "p", small(), "small")
    (tmp_path / "p" / "graph.json").write_text("{}")
    with pytest.raises(PackageError, match=r"graph\.json"):
        load(ModelForm(engine="int", path=str(tmp_path / "p")))

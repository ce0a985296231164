"""The C++ engine: compiled once, by whatever compiler is there, and clear where none is."""

from pathlib import Path

import numpy as np
import pytest

from stoker.deploy.engines.law import NumpyEngine
from stoker.deploy.engines.native.engine import CompiledEngine
from tests.deploy.test_package import small

pytestmark = pytest.mark.integration


def test_a_library_is_compiled_once(tmp_path: Path) -> None:
    CompiledEngine(small(), folder=tmp_path)
    (library,) = tmp_path.iterdir()
    before = library.stat().st_mtime_ns
    CompiledEngine(small(), folder=tmp_path)
    assert [path.stat().st_mtime_ns for path in tmp_path.iterdir()] == [before]


def test_weights_are_data_and_need_no_other_library(tmp_path: Path) -> None:
    engines = [CompiledEngine(small(weight), folder=tmp_path) for weight in (3, 90)]
    assert len(list(tmp_path.iterdir())) == 1
    values = {"x": np.array([[127, 0]], np.int32)}
    found = [engine.integers(values)["y"].tolist() for engine in engines]
    assert found == [NumpyEngine(small(weight)).integers(values)["y"].tolist() for weight in (3, 90)]
    assert found[0] != found[1]


def test_without_a_compiler_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        RuntimeError, match=r"`the C\+\+ engine of stoker deploy` needs a C\+\+ compiler.*install g\+\+"
    ):
        CompiledEngine(small(), folder=tmp_path / "kept")
    monkeypatch.setenv("CXX", "false")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with pytest.raises(RuntimeError, match="must build the C"):
        CompiledEngine(small(), folder=tmp_path / "kept")
    assert list((tmp_path / "kept").iterdir()) == []


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({}, "must have the inputs x, got none"),
        ({"x": np.zeros((2, 3), np.float32)}, r"`x` must have the shape \(batch, 2\), got \(2, 3\)"),
        ({"x": np.zeros((2, 2), np.complex64)}, "`x` must hold float32, got complex64"),
        ({"x": np.zeros((2, 2), np.float32), "z": np.zeros(2)}, "must have the inputs x, got x, z"),
    ],
)
def test_inputs_of_another_form_are_refused(tmp_path: Path, arrays: dict[str, np.ndarray], said: str) -> None:
    for engine in (NumpyEngine(small()), CompiledEngine(small(), folder=tmp_path)):
        with pytest.raises(ValueError, match=said):
            engine(arrays)


def test_numbers_that_are_none_and_huge_ones_have_a_result(tmp_path: Path) -> None:
    numbers = np.array([[np.nan, np.inf], [-np.inf, 1e30], [0.25, -0.35]], np.float32)
    found = [engine({"x": numbers})["y"] for engine in (NumpyEngine(small()), CompiledEngine(small(), folder=tmp_path))]
    assert np.array_equal(*found)
    assert np.isfinite(found[0]).all()


def test_an_empty_batch_is_empty(tmp_path: Path) -> None:
    for engine in (NumpyEngine(small()), CompiledEngine(small(), folder=tmp_path)):
        assert engine({"x": np.zeros((0, 2), np.float32)})["y"].shape == (0, 2)

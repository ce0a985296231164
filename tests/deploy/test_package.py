"""A package is the same bytes for the same model, and refused when one of them is another."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stoker.core.errors import PackageError
from stoker.deploy.engines.law import NumpyEngine
from stoker.deploy.ir import operations as op
from stoker.deploy.ir.graph import IntegerGraph
from stoker.deploy.ir.values import IntegerValue, ModelPort
from stoker.deploy.package.folder import read_package, write_package


def small(weight: int = 3) -> IntegerGraph:
    values = {
        name: IntegerValue(name=name, shape=(2,), bits=8, signed=True, scale=0.1, zero_point=0, low=-128, high=127)
        for name in "xy"
    }
    by = op.Requantiser(multiplier="m", shift=18, zero_point=0, low=-128, high=127)
    layer = op.Linear(source="x", output="y", weight="w", weight_bits=8, bias="b", requantiser=by)
    ports = [ModelPort(name=name, value=name, dtype="float32", shape=(2,), order=(0,)) for name in "xy"]
    return IntegerGraph(
        inputs=(ports[0],),
        outputs=(ports[1],),
        values=values,
        operations=(layer,),
        constants={
            "w": np.array([[weight, -5], [7, 100]], np.int8),
            "b": np.array([4, -4], np.int16),
            "m": np.array([40000, 5], np.uint16),
        },
    )


def test_it_is_read_as_it_was_written(tmp_path: Path) -> None:
    digest = write_package(tmp_path / "p", small(), "small")
    found = read_package(tmp_path / "p")
    assert (found.digest, found.model, found.accuracy) == (digest, "small", None)
    assert found.graph.operations == small().operations
    values = {"x": np.array([[1, 2], [-128, 127]], np.int32)}
    assert np.array_equal(NumpyEngine(found.graph).integers(values)["y"], NumpyEngine(small()).integers(values)["y"])


def test_the_same_model_is_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_package(tmp_path / name, small(), "small")
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()
    assert write_package(tmp_path / "other", small(4), "small") != read_package(tmp_path / "one").digest


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_flipped_bit_is_refused(tmp_path: Path, data: st.DataObject) -> None:
    write_package(tmp_path / "p", small(), "small")
    path = data.draw(st.sampled_from(sorted((tmp_path / "p").iterdir())))
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) * 8 - 1 - (8 if path.name == "digest" else 0)))
    content[place // 8] ^= 1 << place % 8
    path.write_bytes(content)
    with pytest.raises(PackageError, match=r"must have|must hold"):
        read_package(tmp_path / "p")


@pytest.mark.parametrize("name", ["graph.json", "constants.safetensors", "manifest.json", "digest"])
@pytest.mark.parametrize("kept", [0, 20])
def test_a_truncated_file_is_refused(tmp_path: Path, name: str, kept: int) -> None:
    write_package(tmp_path / "p", small(), "small")
    path = tmp_path / "p" / name
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(PackageError, match="damaged"):
        read_package(tmp_path / "p")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    write_package(tmp_path / "p", small(), "small")
    (tmp_path / "p" / "constants.safetensors").unlink()
    with pytest.raises(PackageError, match=r"constants\.safetensors.*make it again with `stoker deploy quantise`"):
        read_package(tmp_path / "p")


def test_a_package_is_replaced_and_nothing_else_is(tmp_path: Path) -> None:
    write_package(tmp_path / "p", small(), "small")
    write_package(tmp_path / "p", small(4), "small")
    assert read_package(tmp_path / "p").graph.constants["w"][0, 0] == 4
    assert [path.name for path in tmp_path.iterdir()] == ["p"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("mine")
    with pytest.raises(PackageError, match="holds something else"):
        write_package(tmp_path / "mine", small(), "small")
    assert (tmp_path / "mine" / "thesis.tex").exists()


def with_highs() -> IntegerGraph:
    """A graph whose input differs by place, which readers of format 1 pass over."""
    values = {
        "x": IntegerValue(
            name="x", shape=(2,), bits=3, signed=False, scale=1.0, zero_point=0, low=0, high=6, highs=(6, 3)
        ),
        "y": IntegerValue(name="y", shape=(2, 1), bits=3, signed=False, scale=1.0, zero_point=0, low=0, high=6),
    }
    port = ModelPort(name="x", value="x", dtype="int64", shape=(2,), order=(0,))
    return IntegerGraph(
        inputs=(port,), outputs=(ModelPort(name="y", value="y", dtype="float32", shape=(2, 1), order=(0, 1)),),
        values=values, operations=(op.Reshape(source="x", output="y"),), constants={},
    )  # fmt: skip


@pytest.mark.parametrize(("graph", "wanted"), [(small, 1), (with_highs, 2)])
def test_older_readers_refuse_what_they_would_pass_over(
    graph: Callable[[], IntegerGraph], wanted: int, tmp_path: Path
) -> None:
    write_package(tmp_path / "p", graph(), "small")
    assert json.loads((tmp_path / "p" / "manifest.json").read_bytes())["format"] == wanted
    assert read_package(tmp_path / "p").graph.values == graph().values


def test_another_format_is_refused(tmp_path: Path) -> None:
    write_package(tmp_path / "p", small(), "small")
    path = tmp_path / "p" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"format": 3}))
    (tmp_path / "p" / "digest").write_text(hashlib.sha256(path.read_bytes()).hexdigest())
    with pytest.raises(PackageError, match="must have format 1 to 2, got 3"):
        read_package(tmp_path / "p")

"""The C++ engine: compiled once, by whatever compiler is there, and clear where none is."""

import platform
import re
from pathlib import Path

import numpy as np
import pytest

from stoker.deploy.engines.law import NumpyEngine
from stoker.deploy.engines.native import kept_libraries
from stoker.deploy.engines.native.engine import CompiledEngine
from stoker.deploy.ir import operations as op
from stoker.deploy.ir.bounds import accumulator, with_ranges
from stoker.deploy.ir.checking import checked
from stoker.deploy.ir.graph import IntegerGraph
from stoker.deploy.ir.values import ModelPort
from stoker.deploy.lowering.grids import Grid
from stoker.deploy.lowering.writing import Writer
from tests.deploy.graphs import numbers_for
from tests.deploy.test_package import small

pytestmark = pytest.mark.integration


def test_a_library_is_compiled_once(tmp_path: Path) -> None:
    CompiledEngine(small(), folder=tmp_path)
    (library,) = tmp_path.iterdir()
    before = library.stat().st_mtime_ns
    CompiledEngine(small(), folder=tmp_path)
    assert [path.stat().st_mtime_ns for path in tmp_path.iterdir()] == [before]


@pytest.mark.parametrize("damage", ["other numbers", "cut short"])
def test_a_stale_library_is_compiled_again(tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Other numbers would be silent, a library that ends early an error of the loader's."""
    library = kept_libraries.library_path("// whole", tmp_path)
    whole = library.read_bytes()
    assert capsys.readouterr().err == ""
    library.unlink()  # not in place: the same file may be loaded
    library.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]) if damage == "other numbers" else whole[:500])
    again = kept_libraries.library_path("// whole", tmp_path)
    assert again.read_bytes() == whole
    assert re.search(r"compiles the C\+\+ engine .* again: `.*` was changed or cut short", capsys.readouterr().err)
    assert kept_libraries.library_path("// whole", tmp_path) == again
    assert capsys.readouterr().err == ""
    assert list(tmp_path.iterdir()) == [again]


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


def long_and_short_sums() -> IntegerGraph:
    """A dense layer whose sums need double precision, then two that single precision holds, of several widths."""
    to, chance = Writer(), np.random.default_rng(0)
    sizes = {"x": 1200, "a": 40, "b": 72, "y": 10}
    for name, size in sizes.items():
        to.value(name, (size,), Grid(bits=8, signed=True, scale=0.1, zero_point=0))
    for source, output in zip("xab", "aby", strict=True):
        weight = chance.choice([-128, 127], (sizes[output], sizes[source]))
        by = op.Requantiser(
            multiplier=None, shift=int(np.log2(sizes[source]) / 2 + 7), zero_point=0, low=-128, high=127
        )
        to.write(
            op.Linear(
                source=source, output=output, weight=to.constant(f"w{output}", weight), weight_bits=8,
                bias=to.constant(f"bias{output}", chance.integers(-99, 99, sizes[output])), requantiser=by,
            )
        )  # fmt: skip
    ports = [
        ModelPort(name=name, value=name, dtype="float32", shape=to.values[name].shape, order=(0,)) for name in "xy"
    ]
    graph = IntegerGraph(
        inputs=(ports[0],), outputs=(ports[1],), values=to.values, operations=tuple(to.operations),
        constants=to.constants,
    )  # fmt: skip
    return checked(with_ranges(graph))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names the vectors of x86")
@pytest.mark.parametrize(
    ("features", "needed"),
    [((), ""), (("-mavx2", "-mfma"), "avx2"), (("-mavx512f", "-mfma"), "avx512f")],
    ids=["sse", "avx2", "avx512"],
)
def test_each_width_of_vectors_gives_the_law(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, features: tuple[str, ...], needed: str
) -> None:
    monkeypatch.setattr(kept_libraries, "OPTIONS", ("-O3", "-march=x86-64", *features, "-Wall", "-Werror"))
    graph = long_and_short_sums()
    bits = [accumulator(each, graph.values, graph.constants).bits for each in graph.operations]
    assert bits[0] > 25 >= max(bits[1:])
    engine = CompiledEngine(graph, folder=tmp_path)
    if needed not in kept_libraries._features():
        pytest.skip(f"compiles; this processor has no {needed}")
    values = numbers_for(graph, 7)
    wanted = NumpyEngine(graph).integers(values)["y"]
    assert np.array_equal(engine.integers(values)["y"], wanted)
    assert np.ptp(wanted) > 50

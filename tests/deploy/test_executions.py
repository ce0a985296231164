"""The law, the C++ of a graph and ONNX Runtime give the same whole numbers for graphs of all kinds."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.deploy.engines.law import NumpyEngine
from stoker.deploy.engines.native.engine import CompiledEngine
from stoker.deploy.engines.onnx_engine import OnnxEngine
from stoker.deploy.ir import operations as op
from stoker.deploy.ir.bounds import with_ranges
from stoker.deploy.ir.checking import checked
from stoker.deploy.ir.graph import IntegerGraph
from stoker.deploy.ir.values import ModelPort
from stoker.deploy.lowering.grids import Grid
from stoker.deploy.lowering.writing import Writer
from tests.deploy.graphs import graphs, numbers_for
from tests.deploy.rtl.engine.nets import counted

pytestmark = pytest.mark.integration


def differing(graph: IntegerGraph, folder: Path, *, compiled: bool) -> int:
    """Outputs that another execution has otherwise."""
    values = numbers_for(graph, 19)
    wanted = NumpyEngine(graph).integers(values)
    engines = [OnnxEngine(graph), *([CompiledEngine(graph, folder=folder)] if compiled else [])]
    return sum(
        int((engine.integers(values)[name] != array).sum()) for engine in engines for name, array in wanted.items()
    )


@given(graph=graphs(every=True))
@settings(max_examples=60)
def test_onnx_runtime_equals_the_law(graph: IntegerGraph) -> None:
    assert differing(graph, Path(), compiled=False) == 0


@pytest.mark.parametrize("signed", [False, True])
def test_pairs_of_products_that_16_bits_do_not_hold_are_exact(tmp_path: Path, signed: bool) -> None:
    """ONNX Runtime's product of bytes with and without a sign saturates there, on CPUs without VNNI."""
    to = Writer()
    to.value("x", (6,), Grid(bits=8, signed=signed, scale=0.1, zero_point=0))
    to.value("y", (3,), Grid(bits=16, signed=True, scale=0.1, zero_point=0))
    weight = np.array([[127] * 6, [-128] * 6, [127, 127, -128, -128, 127, 0]])
    by = op.Requantiser(multiplier=None, shift=4, zero_point=0, low=-(1 << 15), high=(1 << 15) - 1)
    to.write(
        op.Linear(
            source="x", output="y", weight=to.constant("w", weight), weight_bits=8,
            bias=to.constant("b", np.zeros(3)), requantiser=by,
        )
    )  # fmt: skip
    ports = [
        ModelPort(name=name, value=name, dtype="float32", shape=to.values[name].shape, order=(0,)) for name in "xy"
    ]
    graph = IntegerGraph(
        inputs=(ports[0],), outputs=(ports[1],), values=to.values, operations=tuple(to.operations),
        constants=to.constants,
    )  # fmt: skip
    assert differing(checked(with_ranges(graph)), tmp_path, compiled=True) == 0


def test_windows_that_a_compiler_lost_are_there(tmp_path: Path) -> None:
    """GCC 12.2 with AVX2 wrote one of three windows where several places of each were taken at once."""
    to = Writer()
    grid = Grid(bits=3, signed=True, scale=0.1, zero_point=-1)
    to.value("x", (3, 5, 4), grid)
    to.value("y", (1, 3, 4), grid)
    to.write(
        op.MaxPool(source="x", output="y", kernel=(1, 3), stride=(3, 2), padding=(0, 0, 2, 0), dilation=(1, 1))
    )  # fmt: skip
    ports = [
        ModelPort(name=name, value=name, dtype="float32", shape=to.values[name].shape, order=(0, 1, 2)) for name in "xy"
    ]
    graph = IntegerGraph(
        inputs=(ports[0],), outputs=(ports[1],), values=to.values, operations=tuple(to.operations),
        constants=to.constants,
    )  # fmt: skip
    assert differing(checked(with_ranges(graph)), tmp_path, compiled=True) == 0


@given(seed=st.integers(0, 99), heads=st.integers(1, 3), tokens=st.integers(1, 6), data=st.data(), masked=st.booleans())
@settings(max_examples=30)
def test_onnx_runtime_counts_what_an_input_says(
    seed: int, heads: int, tokens: int, data: st.DataObject, masked: bool
) -> None:
    shape = (heads, tokens, tokens)
    counts = tuple(data.draw(st.sampled_from([1, size])) for size in shape)
    assert differing(counted(seed, shape, counts, masked=masked), Path(), compiled=False) == 0


@pytest.mark.parametrize(
    ("counts", "masked"),
    [
        ((1, 1, 5), False), ((2, 5, 1), True),
        *(pytest.param(each, True, marks=pytest.mark.exhaustive) for each in [(1, 5, 5), (2, 1, 5), (1, 1, 1)]),
    ],
)  # fmt: skip
def test_a_compiled_graph_counts_what_an_input_says(tmp_path: Path, counts: tuple[int, ...], masked: bool) -> None:
    assert differing(counted(1, (2, 5, 5), counts, masked=masked), tmp_path, compiled=True) == 0


@given(graph=graphs(every=True))
@settings(max_examples=4)
def test_a_few_compiled_graphs_equal_the_law(tmp_path_factory: pytest.TempPathFactory, graph: IntegerGraph) -> None:
    assert differing(graph, tmp_path_factory.mktemp("engines"), compiled=True) == 0


@pytest.mark.exhaustive
@pytest.mark.timeout(300)
@pytest.mark.slow("compiles fifty programs")
@given(graph=graphs(every=True))
@settings(max_examples=50)
def test_compiled_graphs_equal_the_law(tmp_path_factory: pytest.TempPathFactory, graph: IntegerGraph) -> None:
    assert differing(graph, tmp_path_factory.mktemp("engines"), compiled=True) == 0


@given(graph=graphs(every=True))
@settings(max_examples=60)
def test_values_stay_in_the_ranges_that_are_proven(graph: IntegerGraph) -> None:
    values = numbers_for(graph, 19)
    arrays: dict[str, np.ndarray] = {port.name: values[port.value] for port in graph.inputs}
    value = graph.value(graph.inputs[0])
    real = (values["x"].astype(np.float64) - value.zero_point) * value.scale
    arrays["x"] = np.moveaxis(real, -1, 1).astype(np.float32)
    for name, array in NumpyEngine(graph).all_values(arrays).items():
        assert graph.values[name].low <= array.min()
        assert array.max() <= graph.values[name].high

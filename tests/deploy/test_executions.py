"""The law, the C++ of a graph and ONNX Runtime give the same whole numbers for graphs of all kinds."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from stoker.deploy.engines.law import NumpyEngine
from stoker.deploy.engines.native.engine import CompiledEngine
from stoker.deploy.engines.onnx_engine import OnnxEngine
from stoker.deploy.ir.graph import IntegerGraph
from tests.deploy.graphs import graphs, numbers_for

pytestmark = pytest.mark.integration


def differing(graph: IntegerGraph, folder: Path, *, compiled: bool) -> int:
    """Outputs that another execution has otherwise."""
    values = numbers_for(graph, 19)
    wanted = NumpyEngine(graph).integers(values)
    engines = [OnnxEngine(graph), *([CompiledEngine(graph, folder=folder)] if compiled else [])]
    return sum(
        int((engine.integers(values)[name] != array).sum()) for engine in engines for name, array in wanted.items()
    )


@given(graph=graphs())
@settings(max_examples=60)
def test_onnx_runtime_equals_the_law(graph: IntegerGraph) -> None:
    assert differing(graph, Path(), compiled=False) == 0


@given(graph=graphs())
@settings(max_examples=4)
def test_a_few_compiled_graphs_equal_the_law(tmp_path_factory: pytest.TempPathFactory, graph: IntegerGraph) -> None:
    assert differing(graph, tmp_path_factory.mktemp("engines"), compiled=True) == 0


@pytest.mark.exhaustive
@pytest.mark.slow("compiles eighty programs")
@given(graph=graphs())
@settings(max_examples=80)
def test_compiled_graphs_equal_the_law(tmp_path_factory: pytest.TempPathFactory, graph: IntegerGraph) -> None:
    assert differing(graph, tmp_path_factory.mktemp("engines"), compiled=True) == 0


@given(graph=graphs())
@settings(max_examples=60)
def test_values_stay_in_the_ranges_that_are_proven(graph: IntegerGraph) -> None:
    values = numbers_for(graph, 19)
    port = graph.inputs[0]
    value = graph.value(port)
    real = (values["x"].astype(np.float64) - value.zero_point) * value.scale
    caller = np.moveaxis(real, -1, 1).astype(np.float32)
    for name, array in NumpyEngine(graph).all_values({"x": caller}).items():
        assert graph.values[name].low <= array.min()
        assert array.max() <= graph.values[name].high

"""Models in ONNX that benchmarks serve."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WIDTH, HIDDEN, CLASSES = 784, 128, 10


def save_mlp(path: Path) -> Path:
    """A small model for digits."""
    source = np.random.default_rng(0)
    shapes = {"a": (WIDTH, HIDDEN), "b": (HIDDEN,), "c": (HIDDEN, CLASSES), "d": (CLASSES,)}
    weights = [
        numpy_helper.from_array((source.standard_normal(shape) / 28).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("Gemm", ["x", "a", "b"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "c", "d"], ["y"]),
    ]
    return _save(path, nodes, weights, WIDTH, CLASSES)


def save_scaling(path: Path, factor: float) -> Path:
    """A model whose answers say which version it is."""
    constant = helper.make_tensor("factor", TensorProto.FLOAT, [], [factor])
    return _save(path, [helper.make_node("Mul", ["x", "factor"], ["y"])], [constant], 4, 4)


def _save(path: Path, nodes: list[onnx.NodeProto], constants: list[onnx.TensorProto], width: int, out: int) -> Path:
    graph = helper.make_graph(
        nodes, "served",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", out])],
        constants,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, path)
    return path

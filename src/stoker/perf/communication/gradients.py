"""What the layers of a traced step exchange, and what their gradients are made of: products, rows, or neither.

A layer's gradient is a product where its weights were multiplied with rows of activations once, in one shape, and hold
nothing else than that product and a bias.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stoker.perf.communication.methods import GradientLayer
from stoker.perf.communication.times import layers_of
from stoker.perf.features.records import Layer, Operation, StepFeatures

_ELEMENTWISE = frozenset({"pointwise", "copy", "random"})
_NORMS = frozenset({"linalg_vector_norm", "_foreach_norm", "norm"})
_HALVES = ("float16", "bfloat16")


def gradient_layers(features: StepFeatures) -> tuple[GradientLayer, ...]:
    """All layers of :func:`~stoker.perf.communication.times.layers_of` the features, in their order.

    Rows are those of a whole step: of all micro-batches, whose factors are sent together.
    """
    weights = features.weights
    width = weights.dense_bytes / weights.dense_count if weights.dense_count else 4.0
    forward: dict[str, list[Operation]] = {}
    for operation in features.operations:
        if operation.phase == "forward":
            forward.setdefault(operation.module, []).append(operation)
    layers = layers_of(features)
    found = [_layer(layer, forward.get(layer.module, []), width) for layer in layers]
    return _joined(found, [forward.get(layer.module, []) for layer in layers])


def norms_of(features: StepFeatures) -> str:
    """An operation that takes norms outside of all modules, as clipping does; empty for none."""
    return next((each.name for each in features.operations if each.name in _NORMS and not each.module), "")


def row_gradient_bytes(features: StepFeatures) -> float:
    """Bytes of all gradients that the program itself has row by row (``sparse=True``)."""
    return float(sum(layer.embedding_gradient_bytes for layer in layers_of(features) if _is_sparse(layer)))


def _is_sparse(layer: Layer) -> bool:
    return 0 < layer.embedding_gradient_bytes < layer.embedding_bytes


def _layer(layer: Layer, operations: Sequence[Operation], width: float) -> GradientLayer:
    tables = 0 if _is_sparse(layer) else layer.embedding_gradient_bytes
    size = float(layer.dense_gradient_bytes + tables)
    if tables:
        return _table(layer, operations, size)
    shapes = {shape for each in operations if (shape := _shape(each)) is not None}
    if not size or len(shapes) != 1:
        why = "it is multiplied in several shapes" if len(shapes) > 1 else "its gradient is no single product"
        return GradientLayer(module=layer.module, bytes=size, why_not=why if size else "")
    ((width_in, width_out),) = shapes
    product = width_in * width_out * width
    if not 0 <= size - product <= width_out * width:
        return GradientLayer(module=layer.module, bytes=size, why_not="it has other weights than those of its product")
    own = [each for each in operations if _shape(each) is not None]
    # As autocast computes them: factors of 16 bits are sent as they are.
    factor = 2 if all(each.dtype in _HALVES for each in own) else 4
    return GradientLayer(
        module=layer.module, bytes=size, product_bytes=product, width_in=width_in, width_out=width_out,
        rows=sum(each.count * _rows(each) for each in own), factor_bytes=factor,
    )  # fmt: skip


def _table(layer: Layer, operations: Sequence[Operation], size: float) -> GradientLayer:
    looked_up = [each for each in operations if each.kind == "embedding" and len(each.dims) == 3]
    sizes = {each.dims[1:] for each in looked_up}
    if layer.dense_gradient_bytes or len(sizes) != 1:
        return GradientLayer(module=layer.module, bytes=size, why_not="it has other weights than one table")
    ((width, rows),) = sizes
    return GradientLayer(
        module=layer.module, bytes=size, lookups=sum(each.count * each.dims[0] for each in looked_up),
        table_rows=rows, width_out=width,
    )  # fmt: skip


def _shape(operation: Operation) -> tuple[int, int] | None:
    """Sizes of the weights that a product of the forward pass multiplies with rows: in, out."""
    dims = operation.dims
    if operation.kind == "matmul" and len(dims) == 4 and dims[0] == 1:
        return dims[3], dims[2]
    if operation.kind == "conv" and len(dims) == 6 and dims[3] == 1 and dims[5] == 1:  # over one position
        return dims[1] * dims[4], dims[2]
    return None


def _rows(operation: Operation) -> int:
    return operation.dims[1] if operation.kind == "matmul" else operation.dims[0]


def _joined(found: Sequence[GradientLayer], operations: Sequence[Sequence[Operation]]) -> tuple[GradientLayer, ...]:
    """The layers, each with the one that feeds it directly: only elementwise work between, and sizes that agree."""
    joined: list[GradientLayer] = []
    source = -1
    for place, (layer, own) in enumerate(zip(found, operations, strict=True)):
        if layer.product_bytes:
            before = found[source] if source >= 0 else None
            fits = before is not None and (before.width_out, before.rows) == (layer.width_in, layer.rows)
            joined.append(replace(layer, fed_by=source if fits else -1))
            source = place
            continue
        if layer.bytes or any(each.kind not in _ELEMENTWISE for each in own):
            source = -1
        joined.append(layer)
    return tuple(joined)

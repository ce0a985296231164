"""The shape of each operation's result, from the shapes of what it reads; batch left out."""

from __future__ import annotations

from collections.abc import Mapping

from stoker.deploy.ir import operations as op
from stoker.deploy.ir.graph import Integers
from stoker.deploy.ir.values import IntegerValue

Shape = tuple[int, ...]


def windows(size: int, kernel: int, stride: int, before: int, after: int, dilation: int = 1) -> int:
    """How many windows fit along an axis.

    Raises:
        ValueError: none does.
    """
    free = size + before + after - dilation * (kernel - 1) - 1
    if free < 0:
        raise ValueError(f"`kernel` must fit into the padded size {size + before + after}, got {kernel} by {dilation}")
    return free // stride + 1


def shape_of(operation: op.Operation, values: Mapping[str, IntegerValue], constants: Mapping[str, Integers]) -> Shape:
    """The shape that an operation's result must have.

    Raises:
        ValueError: the shapes of what it reads do not fit each other.
    """
    shapes = [values[name].shape for name in op.sources_of(operation)]
    match operation:
        case op.Linear():
            rows, columns = constants[operation.weight].shape
            _equal(operation, "columns of `weight`", columns, shapes[0][-1])
            return *shapes[0][:-1], rows
        case op.Convolution():
            return _convolution(operation, shapes[0], constants[operation.weight].shape)
        case op.MaxPool():
            return *_windowed(shapes[0], operation.kernel, operation.stride, operation.padding, operation.dilation), (
                shapes[0][2]
            )
        case op.SumPool():
            return *_windowed(shapes[0], operation.kernel, operation.stride, operation.padding), shapes[0][2]
        case op.Mean():
            return tuple(1 if axis in operation.axes else size for axis, size in enumerate(shapes[0]))
        case op.Add() | op.Multiply():
            return broadcast(*shapes)
        case op.MatMul():
            first, second = shapes
            inner, columns = second[-1 if operation.transposed else -2], second[-2 if operation.transposed else -1]
            _equal(operation, "inner size", inner, first[-1])
            return *broadcast(first[:-2], second[:-2]), first[-2], columns
        case op.Concat():
            joined = list(shapes[0])
            joined[operation.axis] = sum(shape[operation.axis] for shape in shapes)
            return tuple(joined)
        case op.Reshape():
            return values[operation.output].shape
        case op.Permute():
            return tuple(shapes[0][axis] for axis in operation.order)
        case op.Slice():
            cut = list(shapes[0])
            cut[operation.axis] = len(range(operation.start, min(operation.stop, cut[operation.axis]), operation.step))
            return tuple(cut)
        case op.Embedding():
            return *shapes[0], constants[operation.table].shape[1]
        case op.EmbeddingBag():
            return *shapes[0][:-1], constants[operation.table].shape[1]
        case op.FixedValue():
            return constants[operation.array].shape
        case op.Softmax() if len(shapes) > 1 and broadcast(*shapes) != shapes[0]:
            raise ValueError(f"`{operation.output}`: `counts` must broadcast over {shapes[0]}, got {shapes[1]}")
        case op.Rescale() | op.Table() | op.LayerNorm() | op.Softmax():
            return shapes[0]


def broadcast(*shapes: Shape) -> Shape:
    """The common shape of shapes of equal rank that differ only where one of them is 1.

    Raises:
        ValueError: they differ elsewhere.
    """
    for sizes in zip(*shapes, strict=True):
        if len(set(sizes) - {1}) > 1:
            raise ValueError(f"`shapes` must differ only where one is 1, got {' and '.join(map(str, shapes))}")
    return tuple(max(sizes) if 0 not in sizes else 0 for sizes in zip(*shapes, strict=True))


def _convolution(operation: op.Convolution, shape: Shape, weight: Shape) -> Shape:
    _equal(operation, "input channels of `weight`", weight[3] * operation.groups, shape[2])
    if weight[0] % operation.groups:
        raise ValueError(f"`{operation.output}`: {weight[0]} channels must be a multiple of {operation.groups} groups")
    sizes = _windowed(shape, (weight[1], weight[2]), operation.stride, operation.padding, operation.dilation)
    return *sizes, weight[0]


def _windowed(
    shape: Shape, kernel: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int, int, int],
    dilation: tuple[int, int] = (1, 1),
) -> tuple[int, int]:  # fmt: skip
    return (
        windows(shape[0], kernel[0], stride[0], padding[0], padding[1], dilation[0]),
        windows(shape[1], kernel[1], stride[1], padding[2], padding[3], dilation[1]),
    )


def _equal(operation: op.Operation, what: str, found: int, wanted: int) -> None:
    if found != wanted:
        raise ValueError(f"`{operation.output}`: {what} must be {wanted}, got {found}")

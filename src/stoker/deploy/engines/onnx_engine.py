# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""ONNX Runtime as an engine: integer products, and the requantiser in double precision, which is exact.

Its own quantised operations scale in single precision and round halves to even, which is another law: of 64,000
outputs with 16-bit multipliers 51 differed. So a graph is written with integer products (or double ones, where numbers
have more than 8 bits), and requantisers as a multiplication, an addition and ``Floor`` in double precision, on whole
numbers below 2^53.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stoker.core.extras import require
from stoker.deploy.engines.engine import IntegerEngine
from stoker.deploy.ir import operations as op
from stoker.deploy.ir.bounds import DOUBLE_BITS, accumulator, product_bits
from stoker.deploy.ir.graph import IntegerGraph, Integers

_OPSET = 18
_IR_VERSION = 9
_BYTE = 8
_SIGN = 128
"""Zero point of signed bytes that are written without their sign."""


class OnnxEngine(IntegerEngine):
    """Executes a graph by ONNX Runtime: for large models, whose products its blocked kernels do well.

    Args:
        graph: any; it is checked.
        threads: of the runtime.

    Raises:
        ValueError: the graph is not sound, or a product has more bits than double precision holds.
        MissingExtraError: onnx or onnxruntime is not installed.
    """

    name = "onnx"

    def __init__(self, graph: IntegerGraph, *, threads: int = 1) -> None:
        super().__init__(graph)
        runtime: Any = require("onnxruntime", extra="deploy")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = threads
        options.log_severity_level = 3
        model = write_onnx(graph).SerializeToString()
        self._session: Any = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def integers(self, values: Mapping[str, Integers]) -> dict[str, Integers]:
        """As every engine's."""
        given = {port.value: np.ascontiguousarray(values[port.value], np.int32) for port in self.inputs}
        names = list(dict.fromkeys(port.value for port in self.outputs))
        found = self._session.run([f"{name}:out" for name in names], given)
        return dict(zip(names, found, strict=True))


def write_onnx(graph: IntegerGraph) -> Any:
    """The graph as an ONNX model on 32-bit whole numbers; inputs by value name, outputs as ``name:out``.

    Raises:
        ValueError: a product has more bits than double precision holds.
        MissingExtraError: onnx is not installed.
    """
    return _Onnx(graph).model()


class _Onnx:
    """A model being written: every value is a tensor of doubles that hold whole numbers, (batch, …)."""

    def __init__(self, graph: IntegerGraph) -> None:
        self._onnx: Any = require("onnx", extra="deploy")
        self._graph = graph
        self._nodes: list[Any] = []
        self._constants: dict[str, Any] = {}
        self._count = 0

    def model(self) -> Any:
        helper, types, graph = self._onnx.helper, self._onnx.TensorProto, self._graph
        for port in graph.inputs:
            self._node("Cast", [port.value], _name(port.value), to=types.DOUBLE)
        for operation in graph.operations:
            self._operation(operation)
        outputs = list(dict.fromkeys(port.value for port in graph.outputs))
        for name in outputs:
            self._node("Cast", [_name(name)], f"{name}:out", to=types.INT32)
        ends = [
            [helper.make_tensor_value_info(name + suffix, types.INT32, ["batch", *graph.values[name].shape])
             for name in names]
            for names, suffix in ((dict.fromkeys(port.value for port in graph.inputs), ""), (outputs, ":out"))
        ]  # fmt: skip
        made = helper.make_graph(self._nodes, "stoker", *ends, initializer=list(self._constants.values()))
        opsets = [helper.make_opsetid("", _OPSET)]
        return helper.make_model(made, opset_imports=opsets, ir_version=_IR_VERSION)

    def _node(self, kind: str, sources: Sequence[str], output: str = "", **attributes: Any) -> str:
        """Adds a node; its output's name."""
        self._count += 1
        name = output or f"t{self._count}"
        self._nodes.append(self._onnx.helper.make_node(kind, list(sources), [name], **attributes))
        return name

    def _constant(self, array: Any) -> str:
        name = f"k{len(self._constants)}"
        self._constants[name] = self._onnx.numpy_helper.from_array(np.ascontiguousarray(array), name)
        return name

    def _double(self, number: float) -> str:
        return self._constant(np.array(float(number), np.float64))

    def _axes(self, *axes: int) -> str:
        return self._constant(np.array(axes, np.int64))

    def _as(self, name: str, kind: str) -> str:
        return self._node("Cast", [name], to=getattr(self._onnx.TensorProto, kind))

    def _centred(self, name: str) -> str:
        """A value less its zero point."""
        zero = self._graph.values[name].zero_point
        return self._node("Sub", [_name(name), self._double(zero)]) if zero else _name(name)

    def _operation(self, operation: op.Operation) -> None:
        output = _name(operation.output)
        if isinstance(operation, op.REQUANTISED):
            self._requantise(operation, self._sums(operation), output)
            return
        graph = self._graph
        match operation:
            case op.MaxPool():
                value = graph.values[operation.source]
                padding = operation.padding
                source = _name(operation.source)
                if any(padding):
                    source = self._padded(source, padding, value.low)
                source = self._node("Transpose", [source], perm=[0, 3, 1, 2])
                pooled = self._node(
                    "MaxPool", [source], kernel_shape=operation.kernel, strides=operation.stride,
                    dilations=operation.dilation,
                )  # fmt: skip
                self._node("Transpose", [pooled], output, perm=[0, 2, 3, 1])
            case op.Table():
                first = graph.values[operation.source].type_low
                place = self._node("Sub", [_name(operation.source), self._double(first)])
                self._lookup(operation.table, self._as(place, "INT64"), output)
            case op.Embedding():
                self._lookup(operation.table, self._as(_name(operation.source), "INT64"), output)
            case op.Concat():
                self._node("Concat", [_name(name) for name in operation.sources], output, axis=operation.axis + 1)
            case op.Reshape():
                shape = self._axes(-1, *graph.values[operation.output].shape)
                self._node("Reshape", [_name(operation.source), shape], output)
            case op.Permute():
                order = [0, *(axis + 1 for axis in operation.order)]
                self._node("Transpose", [_name(operation.source)], output, perm=order)
            case op.Slice():
                ends = [self._axes(each) for each in
                        (operation.start, operation.stop, operation.axis + 1, operation.step)]  # fmt: skip
                self._node("Slice", [_name(operation.source), *ends], output)
            case op.Softmax():
                self._softmax(operation, output)
            case op.FixedValue():
                array = graph.constants[operation.array].astype(np.float64)
                batch = self._node("Shape", [_name(graph.inputs[0].value)], start=0, end=1)
                shape = self._node("Concat", [batch, self._axes(*array.shape)], axis=0)
                self._node("Expand", [self._constant(array), shape], output)

    def _lookup(self, table: str, places: str, output: str) -> None:
        self._node("Gather", [self._constant(self._graph.constants[table].astype(np.float64)), places], output, axis=0)

    def _sums(self, operation: op.Operation) -> str:
        """Accumulators as doubles."""
        graph = self._graph
        match operation:
            case op.Linear():
                weight, bias = graph.constants[operation.weight], graph.constants[operation.bias]
                products = self._products(operation.source, weight.T)
                return self._node("Add", [products, self._constant(bias.astype(np.float64))])
            case op.Convolution():
                return self._convolution(operation)
            case op.SumPool():
                return self._sum_pool(operation)
            case op.Mean():
                axes = self._axes(*(axis + 1 for axis in operation.axes))
                return self._node("ReduceSum", [self._centred(operation.source), axes], keepdims=1)
            case op.Add():
                terms = [
                    self._node("Mul", [self._centred(name), self._double(by)])
                    for name, by in zip(operation.sources, operation.multipliers, strict=True)
                ]
                total = terms[0]
                for term in terms[1:]:
                    total = self._node("Add", [total, term])
                return total
            case op.Multiply():
                return self._node("Mul", [self._centred(name) for name in operation.sources])
            case op.MatMul():
                first, second = (self._centred(name) for name in operation.sources)
                if operation.transposed:
                    rank = len(graph.values[operation.sources[1]].shape) + 1
                    second = self._node("Transpose", [second], perm=[*range(rank - 2), rank - 1, rank - 2])
                return self._node("MatMul", [first, second])
            case op.Rescale():
                return self._centred(operation.source)
            case op.EmbeddingBag():
                places = self._as(_name(operation.source), "INT64")
                table = self._constant(graph.constants[operation.table].astype(np.float64))
                return self._node(
                    "ReduceSum", [self._node("Gather", [table, places], axis=0), self._axes(-2)], keepdims=0
                )
            case op.LayerNorm():
                return self._layer_norm(operation)
            case _:
                raise ValueError(f"`{operation.output}` must have an accumulator, got {type(operation).__name__}")

    def _products(self, source: str, weight: Integers) -> str:
        """Rows times a matrix of weights: integer products where numbers have 8 bits and sums 32."""
        value = self._graph.values[source]
        if value.bits > _BYTE or value.bits + _BYTE + math.ceil(math.log2(max(2, weight.shape[0]))) > 31:
            return self._node("MatMul", [_name(source), self._constant(weight.astype(np.float64))])
        rows = self._as(_name(source), "INT8" if value.signed else "UINT8")
        factors = [rows, self._constant(weight.astype(np.int8))]
        if not value.signed:
            # Both without a sign: on CPUs without VNNI, products of one with and one without saturate at 16 bits.
            moved = [np.array(0, np.uint8), np.array(_SIGN, np.uint8)]
            factors = [rows, self._constant((weight.astype(np.int16) + _SIGN).astype(np.uint8))]
            factors += [self._constant(zero_point) for zero_point in moved]
        return self._as(self._node("MatMulInteger", factors), "DOUBLE")

    def _padded(self, source: str, padding: tuple[int, int, int, int], fill: int) -> str:
        top, bottom, left, right = padding
        pads = self._axes(0, top, left, 0, 0, bottom, right, 0)
        return self._node("Pad", [source, pads, self._double(fill)])

    def _convolution(self, operation: op.Convolution) -> str:
        """By single-precision products where sums have 24 bits, else by double ones over the places of a kernel."""
        graph = self._graph
        value, weight = graph.values[operation.source], graph.constants[operation.weight]
        source = _name(operation.source)
        if any(operation.padding):
            source = self._padded(source, operation.padding, value.zero_point)
        source = self._node("Transpose", [source], perm=[0, 3, 1, 2])
        if accumulator(operation, graph.values, graph.constants).bits <= 25:
            taps = self._constant(weight.transpose(0, 3, 1, 2).astype(np.float32))
            found = self._as(self._node(
                "Conv", [self._as(source, "FLOAT"), taps], strides=operation.stride, dilations=operation.dilation,
                group=operation.groups,
            ), "DOUBLE")  # fmt: skip
        elif value.bits <= _BYTE:
            # Unsigned by adding 128, which the bias takes back: the runtime's integer convolution has no signed input.
            shift = 128 if value.signed else 0
            rows = self._as(self._node("Add", [source, self._double(shift)]), "UINT8")
            taps = self._constant(weight.transpose(0, 3, 1, 2).astype(np.int8))
            zero = self._constant(np.array(shift, np.uint8))
            found = self._as(self._node(
                "ConvInteger", [rows, taps, zero], strides=operation.stride, dilations=operation.dilation,
                group=operation.groups,
            ), "DOUBLE")  # fmt: skip
        else:
            raise ValueError(f"`{operation.output}`: sums of more than 24 bits must have inputs of 8, got {value.bits}")
        found = self._node("Transpose", [found], perm=[0, 2, 3, 1])
        return self._node("Add", [found, self._constant(graph.constants[operation.bias].astype(np.float64))])

    def _sum_pool(self, operation: op.SumPool) -> str:
        """Sums by slices, one a place of the kernel."""
        value, out = self._graph.values[operation.source], self._graph.values[operation.output]
        source = self._centred(operation.source)
        if any(operation.padding):
            source = self._padded(source, operation.padding, 0)
        total = ""
        for row in range(operation.kernel[0]):
            for column in range(operation.kernel[1]):
                ends = [start + (size - 1) * step + 1 for start, size, step in
                        zip((row, column), out.shape, operation.stride, strict=False)]  # fmt: skip
                part = self._node("Slice", [
                    source, self._axes(row, column), self._axes(*ends), self._axes(1, 2), self._axes(*operation.stride),
                ])  # fmt: skip
                total = self._node("Add", [total, part]) if total else part
        assert value.shape[2] == out.shape[2]
        return total

    def _layer_norm(self, operation: op.LayerNorm) -> str:
        """In 64-bit whole numbers; divisions of negative ones, which round to 0, are floored."""
        graph = self._graph
        size = graph.values[operation.source].shape[-1]

        def whole(number: int) -> str:
            return self._constant(np.array(number, np.int64))

        x = self._as(_name(operation.source), "INT64")
        total = self._node("ReduceSum", [x, self._axes(-1)], keepdims=1)
        centred = self._node("Sub", [self._node("Mul", [x, whole(size)]), total])
        squares = self._node("ReduceSum", [self._node("Mul", [centred, centred]), self._axes(-1)], keepdims=1)
        squares = self._node("Add", [squares, whole(operation.epsilon)])
        widened = self._node("Mul", [squares, whole(1 << (2 * operation.root_bits))])
        root = self._root(self._node("Div", [widened, whole(size)]), whole(1))
        root = self._node("Max", [root, whole(1)])
        reciprocal = self._node("Div", [whole(1 << operation.reciprocal_bits), root])
        shift = operation.reciprocal_bits - operation.root_bits - operation.normal_bits
        normal = self._node("Mul", [centred, reciprocal])
        normal = self._shifted(self._node("Add", [normal, whole((1 << shift) >> 1)]), shift, whole)
        gain, offset = (graph.constants[name].astype(np.int64) for name in (operation.gain, operation.offset))
        scaled = self._node("Mul", [normal, self._constant(gain)])
        return self._as(self._node("Add", [scaled, self._constant(offset)]), "DOUBLE")

    def _root(self, numbers: str, one: str) -> str:
        """The floor of square roots: a double's, put right by one."""
        found = self._as(self._node("Floor", [self._node("Sqrt", [self._as(numbers, "DOUBLE")])]), "INT64")
        above = self._node("Greater", [self._node("Mul", [found, found]), numbers])
        found = self._node("Sub", [found, self._as(above, "INT64")])
        more = self._node("Add", [found, one])
        below = self._node("LessOrEqual", [self._node("Mul", [more, more]), numbers])
        return self._node("Add", [found, self._as(below, "INT64")])

    def _shifted(self, numbers: str, shift: int, whole: Any) -> str:
        """An arithmetic shift to the right of 64-bit numbers: what is left of n after its remainder, divided."""
        divisor = whole(1 << shift)
        rest = self._node("Mod", [numbers, divisor], fmod=0)
        return self._node("Div", [self._node("Sub", [numbers, rest]), divisor])

    def _softmax(self, operation: op.Softmax, output: str) -> None:
        graph = self._graph
        source, out = _name(operation.source), graph.values[operation.output]
        least, kept = graph.values[operation.source].type_low, ""
        if operation.mask is not None:
            mask = graph.constants[operation.mask] != 0
            kept = self._constant(np.broadcast_to(mask, graph.values[operation.source].shape))
        if operation.counts is not None:
            counts = self._as(_name(operation.counts), "BOOL")
            kept = self._node("And", [kept, counts]) if kept else counts
        if kept:
            source = self._node("Where", [kept, source, self._double(least)])
        largest = self._node("ReduceMax", [source, self._axes(-1)], keepdims=1)
        places = self._as(self._node("Sub", [largest, source]), "INT64")
        table = self._constant(graph.constants[operation.table].astype(np.float64))
        powers = self._node("Gather", [table, places], axis=0)
        if kept:
            powers = self._node("Mul", [powers, self._as(kept, "DOUBLE")])
        total = self._node("ReduceSum", [powers, self._axes(-1)], keepdims=1)
        half = self._node("Floor", [self._node("Mul", [total, self._double(0.5)])])
        raised = self._node("Add", [self._node("Mul", [powers, self._double(1 << out.bits)]), half])
        divisor = self._node("Max", [total, self._double(1)])  # 0 where nothing counts, and then all powers are
        parts = [self._as(each, "INT64") for each in (raised, divisor)]
        shares = self._as(self._node("Div", parts), "DOUBLE")
        self._node("Min", [shares, self._double(out.type_high)], output)

    def _requantise(self, operation: op.Operation, acc: str, output: str) -> None:
        assert isinstance(operation, op.REQUANTISED)
        by, graph = operation.requantiser, self._graph
        width = product_bits(accumulator(operation, graph.values, graph.constants), by, graph.constants)
        if width > DOUBLE_BITS + 1:
            raise ValueError(
                f"`{operation.output}`: `acc * M` must have at most {DOUBLE_BITS} bits for ONNX Runtime, needs {width}"
                "; use the NumPy or the C++ engine"
            )
        total = acc
        if by.multiplier is not None:
            total = self._node("Mul", [total, self._constant(graph.constants[by.multiplier].astype(np.float64))])
        total = self._node("Add", [total, self._double((1 << by.shift) >> 1)])
        total = self._node("Floor", [self._node("Mul", [total, self._double(2.0**-by.shift)])])
        total = self._node("Add", [total, self._double(by.zero_point)])
        total = self._node("Max", [total, self._double(by.low)])
        self._node("Min", [total, self._double(by.high)], output)


def _name(value: str) -> str:
    """A value's tensor of doubles; its own name is that of the 32-bit input."""
    return f"{value}:real"

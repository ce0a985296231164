"""Writes the C++ of a graph: one call of ``kernels.hpp`` an operation, all sizes constant."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from stoker.core.placement.offsets import place_buffers
from stoker.deploy.engines.native.loops import broadcast_steps, nest, steps_of
from stoker.deploy.ir import operations as op
from stoker.deploy.ir.bounds import accumulator
from stoker.deploy.ir.graph import IntegerGraph, Integers
from stoker.deploy.ir.values import IntegerValue, ModelPort

KERNELS = Path(__file__).with_name("kernels.hpp")
_LANES = 16
_ROWS = 4
_FLOAT_BITS = 25
"""Signed numbers of so many bits are exact in single precision."""
_TILE = 8
"""Samples that go through the graph together, so that weights are read once for several."""
_TILE_BYTES = 1 << 20
"""What the values of a tile may take, to stay in a core's cache; large samples go alone."""
_C_TYPES = {"b": "int8_t", "B": "uint8_t", "h": "int16_t", "H": "uint16_t", "i": "i32", "l": "i64", "f": "float"}

_END_TYPES = {"float32": "float", "int64": "i64", "bool": "bool"}
"""C++ types of a caller's arrays, by their dtype."""


@dataclass(slots=True)
class EngineSource:
    """What the writer makes.

    Attributes:
        text: of the program, without the kernels.
        constants: arrays in the order in which the program takes their addresses.
        scratch_bytes: memory that a call needs.
    """

    text: str = ""
    constants: list[Integers] = field(default_factory=lambda: [])
    scratch_bytes: int = 0


def write_source(graph: IntegerGraph) -> EngineSource:
    """The C++ program of a checked graph.

    It has ``stoker_run(constants, inputs, outputs, batch, scratch)`` for a caller's arrays and ``stoker_integers``, the
    same for the graph's whole numbers.
    """
    return _Writer(graph).source()


class _Writer:
    def __init__(self, graph: IntegerGraph) -> None:
        self._graph = graph
        self._made = EngineSource()
        self._structs: list[str] = []
        self._declared: list[str] = []
        self._room = 0
        """Bytes of the largest working copy that a kernel makes."""
        self._names = {name: f"v{at}" for at, name in enumerate(graph.values)}

    def source(self) -> EngineSource:
        graph = self._graph
        body = [line for each in graph.operations for line in self._operation(each)]
        tile, places, nbytes = self._placed()
        base = -(-nbytes // 64) * 64
        pointers = [
            f"i32* const {self._names[name]} = reinterpret_cast<i32*>(scratch + {place});"
            for name, place in places.items()
        ]
        taken = [line for at, port in enumerate(graph.inputs) for line in self._taken(at, port)]
        given = [line for at, port in enumerate(graph.outputs) for line in self._given(at, port)]
        self._made.scratch_bytes = base + self._room
        self._made.text = "\n".join(
            [
                "using namespace stoker;",
                "namespace {",
                *self._structs,
                "template <bool REAL>",
                "void run(const void* const* constants, const void* const* inputs, void* const* outputs, i64 batch,",
                "         char* scratch) {",
                *(f"  {line}" for line in (*self._declared, *pointers)),
                f"  void* const room = scratch + {base};",
                f"  for (i64 first = 0; first < batch; first += {tile}) {{",
                f"    const i64 n = batch - first < {tile} ? batch - first : {tile};",
                *(f"    {line}" for line in (*taken, *body, *given)),
                "  }",
                "  (void)room;",
                "}",
                "}  // namespace",
                *(
                    f'extern "C" void {name}(const void* const* constants, const void* const* inputs, '
                    f"void* const* outputs, i64 batch, char* scratch) {{\n"
                    f"  run<{real}>(constants, inputs, outputs, batch, scratch);\n}}"
                    for name, real in (("stoker_run", "true"), ("stoker_integers", "false"))
                ),
                "",
            ]
        )
        return self._made

    def _placed(self) -> tuple[int, dict[str, int], int]:
        """Samples of a tile, where the values of a tile lie, and their bytes: places are shared by turns."""
        graph = self._graph
        roots: dict[str, str] = {}
        births = {port.value: 0 for port in graph.inputs}
        deaths = {port.value: 1 for port in graph.inputs}
        for at, operation in enumerate(graph.operations, 1):
            name = operation.output
            if isinstance(operation, op.Reshape):
                roots[name] = roots.get(operation.source, operation.source)
            births.setdefault(name, at)
            for each in (name, *op.sources_of(operation)):
                deaths[roots.get(each, each)] = at + 1
        for port in graph.outputs:
            deaths[roots.get(port.value, port.value)] = len(graph.operations) + 2
        own = [name for name in births if name not in roots]
        largest = max(graph.values[name].elements for name in own) * 4
        tile = max(1, min(_TILE, _TILE_BYTES // largest))
        lives = [(tile * graph.values[name].elements * 4, births[name], deaths[name]) for name in own]
        placement = place_buffers(lives)
        places = dict(zip(own, placement.offsets, strict=True))
        return tile, places | {name: places[root] for name, root in roots.items()}, placement.size

    def _constant(self, array: Integers) -> str:
        """The name of a constant's pointer in the program."""
        name = f"c{len(self._made.constants)}"
        kind = "double" if array.dtype == np.float64 else _C_TYPES[np.dtype(array.dtype).char]
        self._declared.append(
            f"const {kind}* const {name} = static_cast<const {kind}*>(constants[{len(self._made.constants)}]);"
        )
        self._made.constants.append(np.ascontiguousarray(array))
        return name

    def _value(self, name: str) -> IntegerValue:
        return self._graph.values[name]

    def _named(self, name: str) -> Integers:
        return self._graph.constants[name]

    def _multiplier(self, by: op.Requantiser) -> Integers:
        return np.ones(1, np.int32) if by.multiplier is None else self._named(by.multiplier).astype(np.int32)

    def _roomy(self, nbytes: int) -> None:
        self._room = max(self._room, nbytes)

    def _taken(self, at: int, port: ModelPort) -> list[str]:
        """Lines that read an input."""
        value, sizes = self._graph.value(port), [port.shape[axis] for axis in port.order]
        steps = steps_of(port.shape)
        walk = {"from": tuple(steps[axis] for axis in port.order), "to": steps_of(sizes)}
        kind = _END_TYPES[port.dtype]
        ends = f"{1.0 / value.scale!r}, {value.zero_point}, {value.low}, {value.high}"
        read = f"quantised(from[{{from}}], {ends})" if port.dtype == "float32" else "i32(from[{from}])"
        return self._end(at, value, "input", kind, nest(sizes, walk, [f"to[{{to}}] = {read};"]))

    def _given(self, at: int, port: ModelPort) -> list[str]:
        """Lines that write an output."""
        value, sizes = self._graph.value(port), [port.shape[axis] for axis in port.order]
        steps = steps_of(port.shape)
        walk = {"to": tuple(steps[axis] for axis in port.order), "from": steps_of(sizes)}
        kind = _END_TYPES[port.dtype]
        real = f"float((double(from[{{from}}]) - {value.zero_point}) * {value.scale!r})"
        write = real if port.dtype == "float32" else f"{kind}(from[{{from}}])"
        return self._end(at, value, "output", kind, nest(sizes, walk, [f"to[{{to}}] = {write};"]))

    def _end(self, at: int, value: IntegerValue, end: str, kind: str, loops: list[str]) -> list[str]:
        """Lines around a sample's: real numbers of a caller, or the graph's own."""
        own, every = self._names[value.name], value.elements
        inward = end == "input"
        outer = f"static_cast<{'const ' if inward else ''}{{}}*>({end}s[{at}]) + first * {every}"
        sample = f"(first + k) * {every}"
        pointers = (
            [f"const {kind}* from = static_cast<const {kind}*>({end}s[{at}]) + {sample};",
             f"i32* to = {own} + k * {every};"]
            if inward
            else [f"const i32* from = {own} + k * {every};",
                  f"{kind}* to = static_cast<{kind}*>({end}s[{at}]) + {sample};"]
        )  # fmt: skip
        whole = outer.format("i32")
        ends = f"{own}, {whole}" if inward else f"{whole}, {own}"
        return [
            "if (REAL) {",
            "  for (i64 k = 0; k < n; k++) {",
            *(f"    {line}" for line in (*pointers, *loops)),
            "  }",
            "} else {",
            f"  std::memcpy({ends}, n * {every} * sizeof(i32));",
            "}",
        ]

    def _operation(self, operation: op.Operation) -> list[str]:
        match operation:
            case op.Linear():
                return self._linear(operation)
            case op.Convolution():
                return self._convolution(operation)
            case op.MaxPool():
                value = self._value(operation.source)
                kind = self._windows(operation, value, operation.kernel, operation.dilation)
                return [f"max_pool<{kind}>({self._in_out(operation)}, n, {value.low});"]
            case op.SumPool():
                return self._sum_pool(operation)
            case op.MatMul():
                return self._matmul(operation)
            case op.LayerNorm():
                return self._layer_norm(operation)
            case op.Softmax():
                return self._softmax(operation)
            case op.Reshape():
                return []
            case op.Mean():
                return self._mean(operation)
            case op.Add() | op.Multiply() | op.Rescale() | op.EmbeddingBag():
                return self._pointwise(operation)
            case op.Table() | op.Embedding() | op.Permute() | op.Slice() | op.Concat() | op.FixedValue():
                return self._moved(operation)

    def _in_out(self, operation: op.Operation) -> str:
        return ", ".join(self._names[name] for name in (*op.sources_of(operation), operation.output))

    def _weights(
        self, operation: op.Linear | op.Convolution, taps: Integers, groups: int, pad: bool
    ) -> tuple[str, str]:
        """C++ type of the accumulator, and the arguments weights, bias, multipliers; taps are (inputs…, outputs)."""
        kind = self._kind(operation)
        bias = self._named(operation.bias).reshape(groups, -1)
        wide = [(0, 0)] * (taps.ndim - 1) + [(0, -taps.shape[-1] % _LANES)]
        weights = np.pad(taps, wide) if pad else taps
        biases = np.pad(bias, [(0, 0), (0, -bias.shape[-1] % _LANES)]) if pad else bias
        multiplier = np.broadcast_to(self._multiplier(operation.requantiser).ravel(), bias.size)
        dtype = np.float32 if kind == "float" else np.float64
        names = [self._constant(each) for each in (weights.astype(dtype), biases.astype(dtype), multiplier.copy())]
        return kind, ", ".join(names)

    def _kind(self, operation: op.Operation) -> str:
        found = accumulator(operation, self._graph.values, self._graph.constants)
        return "float" if found.bits <= _FLOAT_BITS else "double"

    def _linear(self, operation: op.Linear) -> list[str]:
        weight = self._named(operation.weight)
        rows = math.prod(self._value(operation.source).shape[:-1])
        return self._as_linear(operation, weight.T, rows)

    def _as_linear(self, operation: op.Linear | op.Convolution, taps: Integers, rows: int) -> list[str]:
        kind, arguments = self._weights(operation, taps, 1, True)
        self._roomy(_ROWS * taps.shape[0] * 8)
        sizes = f"{kind}, {taps.shape[0]}, {taps.shape[1]}"
        return [
            f"linear<{sizes}>({self._in_out(operation)}, n * {rows}, {arguments}, {_by(operation.requantiser)}, "
            f"static_cast<{kind}*>(room));"
        ]

    def _convolution(self, operation: op.Convolution) -> list[str]:
        weight, value = self._named(operation.weight), self._value(operation.source)
        outputs, height, width, depth = weight.shape
        plain = height == width == 1 and operation.stride == (1, 1) and not any(operation.padding)
        if plain and operation.groups == 1:
            return self._as_linear(operation, weight.reshape(outputs, depth).T, math.prod(value.shape[:2]))
        groups, own = operation.groups, outputs // operation.groups
        by_channel = depth == 1 and own == 1
        if by_channel:
            taps = weight.reshape(outputs, height, width).transpose(1, 2, 0)
        else:
            taps = weight.reshape(groups, own, height, width, depth).transpose(0, 2, 3, 4, 1)
        kind, arguments = self._weights(operation, taps, 1 if by_channel else groups, not by_channel)
        struct = self._windows(operation, value, (height, width), operation.dilation)
        rows, columns = value.shape[0] + sum(operation.padding[:2]), value.shape[1] + sum(operation.padding[2:])
        self._roomy(rows * columns * value.shape[2] * 8)
        name = "depthwise" if by_channel else "convolution"
        return [
            f"{name}<{kind}, {struct}>({self._in_out(operation)}, n, {arguments}, {value.zero_point}, "
            f"{_by(operation.requantiser)}, static_cast<{kind}*>(room));"
        ]

    def _windows(
        self, operation: op.Convolution | op.MaxPool | op.SumPool, value: IntegerValue, kernel: tuple[int, int],
        dilation: tuple[int, int],
    ) -> str:  # fmt: skip
        """The name of a struct of sizes."""
        out = self._value(operation.output)
        sizes = {
            "H": value.shape[0], "W": value.shape[1], "C": value.shape[2], "KH": kernel[0], "KW": kernel[1],
            "SY": operation.stride[0], "SX": operation.stride[1], "DY": dilation[0], "DX": dilation[1],
            "OH": out.shape[0], "OW": out.shape[1], "O": out.shape[2],
            "GROUPS": operation.groups if isinstance(operation, op.Convolution) else 1,
        }  # fmt: skip
        name = f"G{len(self._structs)}"
        whole = ", ".join(f"{key} = {size}" for key, size in sizes.items())
        pad = ", ".join(map(str, operation.padding))
        self._structs.append(
            f"struct {name} {{ static constexpr int {whole}; static constexpr int PAD[4] = {{{pad}}}; }};"
        )
        return name

    def _sum_pool(self, operation: op.SumPool) -> list[str]:
        value = self._value(operation.source)
        kind = self._windows(operation, value, operation.kernel, (1, 1))
        multiplier = self._multiplier(operation.requantiser)
        by_window = multiplier.ndim == 3
        steps = (1, 0) if by_window else (0, int(multiplier.size > 1))
        name = self._constant(multiplier.ravel())
        return [
            f"sum_pool<{kind}>({self._in_out(operation)}, n, {value.zero_point}, {name}, {steps[0]}, {steps[1]}, "
            f"{_by(operation.requantiser)});"
        ]

    def _matmul(self, operation: op.MatMul) -> list[str]:
        first, second = (self._value(name) for name in operation.sources)
        out, kind = self._value(operation.output), self._kind(operation)
        inner, columns = first.shape[-1], out.shape[-1]
        self._roomy(inner * columns * 8)
        multiplier = int(self._multiplier(operation.requantiser).ravel()[0])
        sizes = f"{kind}, {out.shape[-2]}, {inner}, {columns}, {'true' if operation.transposed else 'false'}"
        stacked = out.shape[:-2]
        walk = {
            name: tuple(step * math.prod(shape[-2:]) for step in broadcast_steps(shape[:-2], stacked))
            for name, shape in (("a", first.shape), ("b", second.shape), ("o", out.shape))
        }
        call = (
            f"matmul<{sizes}>(a + {{a}}, b + {{b}}, o + {{o}}, {first.zero_point}, {second.zero_point}, "
            f"{multiplier}, {_by(operation.requantiser)}, static_cast<{kind}*>(room));"
        )
        return self._samples(operation, nest(stacked, walk, [call]))

    def _layer_norm(self, operation: op.LayerNorm) -> list[str]:
        shape = self._value(operation.source).shape
        gain = self._constant(self._named(operation.gain).astype(np.int32))
        offset = self._constant(self._named(operation.offset).astype(np.int64))
        numbers = (operation.epsilon, operation.root_bits, operation.reciprocal_bits, operation.normal_bits)
        return [
            f"layer_norm<{shape[-1]}>({self._in_out(operation)}, n * {math.prod(shape[:-1])}, {gain}, {offset}, "
            f"{', '.join(map(str, numbers))}, {_by(operation.requantiser)});"
        ]

    def _softmax(self, operation: op.Softmax) -> list[str]:
        shape, out = self._value(operation.source).shape, self._value(operation.output)
        table = self._constant(self._named(operation.table).astype(np.int32))
        rows, mask, masked = math.prod(shape[:-1]), "nullptr", 1
        if operation.mask is not None:
            array = np.broadcast_to(self._named(operation.mask), shape).astype(np.int32)
            mask, masked = self._constant(array), rows
        if operation.counts is not None:
            counts, steps = self._value(operation.counts).shape, steps_of(shape)[:-1]
            walk = {"a": steps, "b": broadcast_steps(counts, shape)[:-1], "o": steps}
            own = "nullptr" if operation.mask is None else f"{mask} + {{o}}"
            call = (
                f"softmax_row<{shape[-1]}>(a + {{a}}, o + {{o}}, {table}, {own}, b + {{b}}, {int(counts[-1] > 1)}, "
                f"{out.bits}, {out.type_high});"
            )
            return self._samples(operation, nest(shape[:-1], walk, [call]))
        return [
            f"softmax<{shape[-1]}>({self._in_out(operation)}, n * {rows}, {table}, {mask}, {masked}, {out.bits}, "
            f"{out.type_high});"
        ]

    def _mean(self, operation: op.Mean) -> list[str]:
        value, out = self._value(operation.source), self._value(operation.output)
        steps, multiplier = steps_of(value.shape), self._multiplier(operation.requantiser)
        name = self._constant(multiplier)
        walk = {
            "a": tuple(0 if axis in operation.axes else step for axis, step in enumerate(steps)),
            "o": steps_of(out.shape),
            "m": broadcast_steps(multiplier.shape, out.shape),
        }
        inner = nest(
            [value.shape[axis] for axis in operation.axes],
            {"in": tuple(steps[axis] for axis in operation.axes)},
            [f"acc += a[{{{{a}}}} + {{in}}] - {value.zero_point};"],
            "j",
        )
        by = _by(operation.requantiser)
        lines = ["i64 acc = 0;", *(_kept(line) for line in inner)]
        lines.append(f"o[{{o}}] = requantised(acc, {name}[{{m}}], {by});")
        return self._samples(operation, nest(out.shape, walk, lines))

    def _pointwise(self, operation: op.Add | op.Multiply | op.Rescale | op.EmbeddingBag) -> list[str]:
        """Operations whose accumulator is one expression of single elements."""
        out, multiplier = self._value(operation.output), self._multiplier(operation.requantiser)
        name = self._constant(multiplier)
        sources = [self._value(each) for each in op.sources_of(operation)]
        walk = {"o": steps_of(out.shape), "m": broadcast_steps(multiplier.shape, out.shape)}
        letters = [_letter(at) for at in range(len(sources))]
        before: list[str] = []
        if isinstance(operation, op.EmbeddingBag):
            bag, dim = sources[0].shape, out.shape[-1]
            table = self._constant(self._named(operation.table))
            walk["a"] = (*steps_of(bag)[:-1], 0)
            walk["d"] = (*(0,) * (len(bag) - 1), 1)
            row = f"{table}[a[{{a}} + j] * i64({dim}) + {{d}}]"
            before = ["i64 acc = 0;", f"for (int j = 0; j < {bag[-1]}; j++) acc += {row};"]
            acc = "acc"
        else:
            named = list(zip(letters, sources, strict=True))
            walk |= {letter: broadcast_steps(each.shape, out.shape) for letter, each in named}
            terms = [f"(i64({letter}[{{{letter}}}]) - {each.zero_point})" for letter, each in named]
            if isinstance(operation, op.Add):
                acc = " + ".join(f"{term} * {by}" for term, by in zip(terms, operation.multipliers, strict=True))
            else:
                acc = " * ".join(terms)
        line = f"o[{{o}}] = requantised({acc}, {name}[{{m}}], {_by(operation.requantiser)});"
        return self._samples(operation, nest(out.shape, walk, [*before, line]))

    def _moved(
        self, operation: op.Table | op.Embedding | op.Permute | op.Slice | op.Concat | op.FixedValue
    ) -> list[str]:
        """Operations that move numbers or look them up."""
        out = self._value(operation.output)
        steps, shape = steps_of(out.shape), out.shape
        match operation:
            case op.Table():
                table = self._constant(self._named(operation.table).astype(np.int32))
                first = self._value(operation.source).type_low
                line = f"o[{{o}}] = {table}[a[{{o}}] - {first}];"
                return self._samples(operation, nest(shape, {"o": steps}, [line]))
            case op.Embedding():
                table, dim = self._constant(self._named(operation.table)), shape[-1]
                walk = {"a": steps_of(shape[:-1]), "o": steps[:-1]}
                line = f"for (int j = 0; j < {dim}; j++) o[{{o}} + j] = {table}[a[{{a}}] * i64({dim}) + j];"
                return self._samples(operation, nest(shape[:-1], walk, [line]))
            case op.Permute():
                own = steps_of(self._value(operation.source).shape)
                walk = {"a": tuple(own[axis] for axis in operation.order), "o": steps}
                return self._samples(operation, nest(shape, walk, ["o[{o}] = a[{a}];"]))
            case op.Slice():
                own = steps_of(self._value(operation.source).shape)
                start = operation.start * own[operation.axis]
                walk = {"a": _with(own, operation.axis, own[operation.axis] * operation.step), "o": steps}
                return self._samples(operation, nest(shape, walk, [f"o[{{o}}] = a[{start} + {{a}}];"]))
            case op.Concat():
                lines: list[str] = []
                start = 0
                for at, name in enumerate(operation.sources):
                    part = self._value(name).shape
                    letter = _letter(at)
                    walk = {letter: steps_of(part), "o": steps}
                    line = f"o[{start * steps[operation.axis]} + {{o}}] = {letter}[{{{letter}}}];"
                    lines += nest(part, walk, [line])
                    start += part[operation.axis]
                return self._samples(operation, lines)
            case op.FixedValue():
                array = self._constant(self._named(operation.array).astype(np.int32))
                return self._samples(operation, nest(shape, {"o": steps}, [f"o[{{o}}] = {array}[{{o}}];"]))

    def _samples(self, operation: op.Operation, lines: Sequence[str]) -> list[str]:
        """Lines for each sample, in which ``a``, ``b``, … are what the operation reads and ``o`` what it writes."""
        pointers: list[str] = []
        for at, name in enumerate(op.sources_of(operation)):
            letter = _letter(at)
            pointers.append(f"const i32* {letter} = {self._names[name]} + k * {self._value(name).elements};")
        own = self._value(operation.output).elements
        pointers.append(f"i32* o = {self._names[operation.output]} + k * {own};")
        return ["for (i64 k = 0; k < n; k++) {", *(f"  {line}" for line in (*pointers, *lines)), "}"]


def _by(by: op.Requantiser) -> str:
    return f"by({by.shift}, {by.zero_point}, {by.low}, {by.high})"


def _letter(at: int) -> str:
    """The pointer to what an operation reads at a place of its sources."""
    return "ab"[at] if at < 2 else f"s{at}"


def _with(steps: tuple[int, ...], axis: int, step: int) -> tuple[int, ...]:
    return *steps[:axis], step, *steps[axis + 1 :]


def _kept(line: str) -> str:
    """A finished line as the body of a nest around it: braces doubled, but for the offset that the nest fills in."""
    return line.replace("{", "{{").replace("}", "}}").replace("{{a}}", "{a}")

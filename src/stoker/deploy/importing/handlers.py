# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""What each operation of torch is as an operation on real numbers; torch's signatures, arguments by name.

An operation that is not in :data:`HANDLERS` is refused with the user's file and line.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import fx

from stoker.deploy.floating.operations import (
    FloatConcat,
    FloatConstant,
    FloatConvolution,
    FloatEmbedding,
    FloatLinear,
    FloatMatMul,
    FloatMean,
    FloatNorm,
    FloatPermute,
    FloatPointwise,
    FloatPool,
    FloatProduct,
    FloatReshape,
    FloatScale,
    FloatSlice,
    FloatSoftmax,
    FloatSum,
)
from stoker.deploy.importing.advice import DROPOUTS
from stoker.deploy.importing.given_grids import GIVEN, given_weights
from stoker.deploy.importing.masks import permutation
from stoker.deploy.importing.matching import Handler, Matcher, Operand, arguments
from stoker.deploy.importing.pointwise import POINTWISE

_MOST_RUNS = 256
"""Slices that parts of a value are taken by: each is an operation."""


def _pair(given: Any, neutral: int = 0) -> tuple[int, int]:
    """Rows and columns of an argument for two axes."""
    values = [int(each) for each in (given if isinstance(given, (list, tuple)) else [given])]
    return values[0], values[-1]


def _flat(given: Any, neutral: int) -> tuple[int, int]:
    """The same of a one-dimensional operation: nothing happens along rows."""
    values = [int(each) for each in (given if isinstance(given, (list, tuple)) else [given])]
    return neutral, values[0]


def _linear(at: Matcher, node: fx.Node) -> None:
    given = arguments(node)
    weight = at.weight(node, given["weight"], "weight")
    bias = np.zeros(len(weight)) if given.get("bias") is None else at.weight(node, given["bias"], "bias")
    steps = given_weights(at, node, given["weight"])
    at.add(FloatLinear, node, [at.value(node, given["input"])], weight=weight, bias=bias, given=steps)


def _addmm(at: Matcher, node: fx.Node) -> None:
    given = arguments(node)
    weight = at.weight(node, given["mat2"], "mat2").T
    bias = np.broadcast_to(at.weight(node, given["self"], "self"), (len(weight),)) * float(given["beta"])
    at.add(FloatLinear, node, [at.value(node, given["mat1"])], weight=weight * float(given["alpha"]), bias=bias)


def _convolution(flat: bool) -> Handler:
    def handle(at: Matcher, node: fx.Node) -> None:
        given = arguments(node)
        weight = at.weight(node, given["weight"], "weight")
        bias = np.zeros(len(weight)) if given.get("bias") is None else at.weight(node, given["bias"], "bias")
        weight = weight[:, :, None, :] if flat else weight
        dilation = _flat(given["dilation"], 1) if flat else _pair(given["dilation"])
        if isinstance(given["padding"], str):
            padding = _same(weight.shape[2:], dilation) if given["padding"] == "same" else (0, 0, 0, 0)
        else:
            rows, columns = _flat(given["padding"], 0) if flat else _pair(given["padding"])
            padding = (rows, rows, columns, columns)
        at.add(
            FloatConvolution, node, [at.value(node, given["input"])], weight=weight, bias=bias, padding=padding,
            stride=_flat(given["stride"], 1) if flat else _pair(given["stride"]), dilation=dilation,
            groups=int(given["groups"]), flat=flat, given=given_weights(at, node, given["weight"]),
        )  # fmt: skip

    return handle


def _same(kernel: tuple[int, ...], dilation: tuple[int, int]) -> tuple[int, int, int, int]:
    rows, columns = (by * (size - 1) for size, by in zip(kernel, dilation, strict=True))
    return rows // 2, rows - rows // 2, columns // 2, columns - columns // 2


def _batch_norm(at: Matcher, node: fx.Node) -> None:
    given = arguments(node)
    if given.get("training"):
        raise at.refused(node, "a batch norm must use its running statistics")
    mean = at.weight(node, given["running_mean"], "running_mean")
    spread = np.sqrt(at.weight(node, given["running_var"], "running_var") + float(given["eps"]))
    gain = np.ones_like(mean) if given.get("weight") is None else at.weight(node, given["weight"], "weight")
    offset = np.zeros_like(mean) if given.get("bias") is None else at.weight(node, given["bias"], "bias")
    factor = gain / spread
    at.add(FloatScale, node, [at.value(node, given["input"])], factor=factor, offset=offset - mean * factor)


def _pool(kind: str, flat: bool) -> Handler:
    def handle(at: Matcher, node: fx.Node) -> None:
        given = arguments(node)
        source = at.value(node, given["self"])
        pair: Callable[..., tuple[int, int]] = _flat if flat else _pair
        kernel = pair(given["kernel_size"], 1)
        stride = pair(given["stride"] or given["kernel_size"], 1)
        rows, columns = pair(given["padding"], 0)
        dilation = pair(given.get("dilation", 1), 1)
        padding = [rows, rows, columns, columns]
        height, width = (1, at.shapes[source][-1]) if flat else at.shapes[source][-2:]
        counted = tuple(padding) if kind == "mean" and given.get("count_include_pad", True) else (0, 0, 0, 0)
        if given.get("ceil_mode"):
            out = (1, at.shape(node)[-1]) if flat else at.shape(node)[-2:]
            for axis, size in enumerate((height, width)):
                span = (out[axis] - 1) * stride[axis] + dilation[axis] * (kernel[axis] - 1) + 1
                padding[2 * axis + 1] = max(padding[2 * axis + 1], span - size - padding[2 * axis])
        if kind == "mean" and given.get("divisor_override"):
            raise at.refused(node, "`divisor_override` must be absent")
        at.add(
            FloatPool, node, [source], kind=kind, kernel=kernel, stride=stride, padding=tuple(padding),
            dilation=dilation, counted=counted, flat=flat,
        )  # fmt: skip

    return handle


def _adaptive_pool(kind: str, flat: bool) -> Handler:
    def handle(at: Matcher, node: fx.Node) -> None:
        given = arguments(node)
        source = at.value(node, given["self"])
        sizes = (1, at.shapes[source][-1]) if flat else at.shapes[source][-2:]
        out = (1, at.shape(node)[-1]) if flat else at.shape(node)[-2:]
        if any(size % into for size, into in zip(sizes, out, strict=True)):
            raise at.refused(
                node, f"the output size {out} must divide the input's {sizes}; choose 1 or another that does"
            )
        kernel = tuple(size // into for size, into in zip(sizes, out, strict=True))
        at.add(FloatPool, node, [source], kind=kind, kernel=kernel, stride=kernel, padding=(0, 0, 0, 0), flat=flat)

    return handle


def _sum_of(sign: float) -> Handler:
    def handle(at: Matcher, node: fx.Node) -> None:
        given = arguments(node)
        factor = sign * float(given.get("alpha", 1))
        first, second = at.operand(node, given["self"]), at.operand(node, given["other"])
        for one, other, by, own in ((first, second, factor, 1.0), (second, first, 1.0, factor)):
            if isinstance(one, str) and not isinstance(other, str) and other.numel() == 1:
                offset = by * float(at.numbers(node, other).ravel()[0])
                at.add(FloatPointwise, node, [one], function="linear", arguments=(own, offset))
                return
        at.add(FloatSum, node, _both(at, node, *_narrowed(at, node, first, second)), factors=(1.0, factor))

    return handle


def _product(at: Matcher, node: fx.Node) -> None:
    given = arguments(node)
    first, second = at.operand(node, given["self"]), at.operand(node, given["other"])
    for one, other in ((first, second), (second, first)):
        if isinstance(one, str) and not isinstance(other, str) and other.numel() == 1:
            factor = float(at.numbers(node, other).ravel()[0])
            at.add(FloatPointwise, node, [one], function="linear", arguments=(factor, 0.0))
            return
    at.add(FloatProduct, node, _both(at, node, *_narrowed(at, node, first, second)))


def _quotient(at: Matcher, node: fx.Node) -> None:
    given = arguments(node)
    first, second = at.operand(node, given["self"]), at.operand(node, given["other"])
    if isinstance(second, str):
        raise at.refused(
            node, "the divisor must be constant, and depends on an input; multiply by its `reciprocal()` instead"
        )
    inverse = 1.0 / second.to(torch.float64)
    if isinstance(first, str) and second.numel() == 1:
        factor = float(at.numbers(node, inverse).ravel()[0])
        at.add(FloatPointwise, node, [first], function="linear", arguments=(factor, 0.0))
    else:
        at.add(FloatProduct, node, _both(at, node, first, inverse))


def _narrowed(at: Matcher, node: fx.Node, first: Operand, second: Operand) -> tuple[Operand, Operand]:
    """Two operands, one of them as it was before it was expanded, if the other has the result's shape anyway."""
    if isinstance(first, str) and isinstance(second, str):
        if at.shapes[second] == at.shape(node) and first in at.narrow:
            return at.narrow[first], second
        if at.shapes[first] == at.shape(node) and second in at.narrow:
            return first, at.narrow[second]
    return first, second


def _both(at: Matcher, node: fx.Node, *operands: Any) -> list[str]:
    """Two operands as values of one rank."""
    rank = len(at.shape(node))
    found: list[str] = []
    for each in operands:
        name = each if isinstance(each, str) else at.constant(node, each, rank=rank)
        if len(at.shapes[name]) != rank:
            shape = (*(1,) * (rank - len(at.shapes[name])), *at.shapes[name])
            wide = f"{node.name}.wide{len(at.operations)}"
            at.add(FloatReshape, node, [name], name=wide, shape=shape)
            at.shapes[wide] = shape
            name = wide
        found.append(name)
    return found


def _matmul(at: Matcher, node: fx.Node) -> None:
    given = arguments(node)
    first = given.get("self")
    second = given.get("mat2", given.get("other"))
    if not at.is_constant(second) or at.is_constant(first):
        pair = _both(at, node, at.operand(node, first), at.operand(node, second))
        _apart(at, node, *pair)
        at.add(FloatMatMul, node, pair)
        return
    weight = at.weight(node, second, "the second factor")
    if weight.ndim != 2:
        raise at.refused(node, f"a constant second factor must have two axes, got {weight.ndim}")
    at.add(FloatLinear, node, [at.value(node, first)], weight=weight.T, bias=np.zeros(weight.shape[1]))


def _apart(at: Matcher, node: fx.Node, *values: str) -> None:
    """Refuses factors whose rows or columns are samples."""
    if any(size < 0 for value in values for size in at.shapes[value][-2:]):
        shapes = " and ".join(str(list(at.shapes[value])) for value in values)
        raise at.refused(node, f"a product must not mix samples of the batch, got factors of {shapes} (-1: the batch)")


def _attention(at: Matcher, node: fx.Node) -> None:
    given = arguments(node)
    query, key, value = (at.value(node, given[name]) for name in ("query", "key", "value"))
    if given.get("enable_gqa"):
        raise at.refused(
            node, "`enable_gqa` must be off; repeat the heads of keys and values by `expand` and `reshape`"
        )
    _apart(at, node, query, key)
    size, rank = at.shapes[query][-1], len(at.shapes[query])
    columns = at.shapes[key][-2]
    factor = size**-0.5 if given.get("scale") is None else float(given["scale"])
    turned = f"{node.name}.key"
    order = (*range(rank - 2), rank - 1, rank - 2)
    at.add(FloatPermute, node, [key], name=turned, order=order)
    at.shapes[turned] = tuple(at.shapes[key][axis] for axis in order)
    scores, shares = f"{node.name}.scores", f"{node.name}.shares"
    at.add(FloatMatMul, node, [query, turned], name=scores, factor=factor)
    at.shapes[scores] = (*at.shapes[query][:-1], columns)
    read, counts, mask = _mask(at, node, given, scores)
    at.add(FloatSoftmax, node, [read, *([counts] if counts else [])], name=shares, mask=mask)
    at.shapes[shares] = at.shapes[scores]
    at.add(FloatMatMul, node, [shares, value])


def _mask(at: Matcher, node: fx.Node, given: dict[str, Any], scores: str) -> tuple[str, str | None, Any]:
    """An attention's scores and what counts of them: a value that says so, or 0 and 1; neither for all."""
    if given.get("is_causal"):
        return scores, None, np.tril(np.ones(at.shapes[scores][-2:], np.int8))
    if given.get("attn_mask") is None:
        return scores, None, None
    return at.masks.counts(node, given["attn_mask"], scores)


def _softmax(log: bool) -> Handler:
    def handle(at: Matcher, node: fx.Node) -> None:
        given = arguments(node)
        rank = len(at.shape(node))
        axis = int(given["dim"]) % rank
        # Rows are last: the axis goes there, which moves nothing in images, and back.
        order = (*(each for each in range(rank) if each != axis), axis)
        source, counts, mask = at.masks.rows(node, given["self"], order)
        shape = at.shapes[source]
        if shape[axis] < 0:
            raise at.refused(node, f"`dim` must not be the batch, got {given['dim']}")
        if log and (counts is not None or mask is not None):
            raise at.refused(node, "the logarithm of shares must not have a mask: where nothing counts, it is -inf")
        masked = [counts] if counts else []
        if axis == rank - 1:
            at.add(FloatSoftmax, node, [source, *masked], mask=mask, log=log)
            return
        turned, rows = f"{node.name}.turned", f"{node.name}.rows"
        at.add(FloatPermute, node, [source], name=turned, order=order)
        at.add(FloatSoftmax, node, [turned, *masked], name=rows, mask=mask, log=log)
        at.shapes[turned] = at.shapes[rows] = tuple(shape[each] for each in order)
        at.add(FloatPermute, node, [rows], order=tuple(order.index(each) for each in range(rank)))

    return handle


def _norm(at: Matcher, node: fx.Node) -> None:
    given = arguments(node)
    shape = list(given["normalized_shape"])
    if len(shape) != 1:
        raise at.refused(node, f"`normalized_shape` must be the last axis, got {shape}")
    gain = np.ones(shape) if given.get("weight") is None else at.weight(node, given["weight"], "weight")
    offset = np.zeros(shape) if given.get("bias") is None else at.weight(node, given["bias"], "bias")
    at.add(FloatNorm, node, [at.value(node, given["input"])], gain=gain, offset=offset, eps=float(given["eps"]))


def _embedding(at: Matcher, node: fx.Node) -> None:
    given = arguments(node)
    table = at.weight(node, given["weight"], "weight")
    at.masks.check_rows(node, given["indices"], len(table))
    source = at.value(node, given["indices"])
    last = at.operations[-1] if at.operations else None
    if isinstance(last, FloatConstant) and last.name == source:  # token types that are all 0, say
        at.alias(node, at.constant(node, torch.from_numpy(table[last.array.astype(int)])))
    else:
        at.add(FloatEmbedding, node, [source], table=table)


def _embedding_bag(at: Matcher, node: fx.Node) -> None:
    """Bags of one size: torch gives the flattened rows and where each bag starts."""
    given = arguments(node)
    table = at.weight(node, given["weight"], "weight")
    indices, offsets = given["indices"], given["offsets"]
    padding = given.get("padding_idx", -1)
    mode = int(given["mode"])
    if mode not in (0, 1) or given.get("per_sample_weights") is not None:
        raise at.refused(node, "a bag must be a sum or a mean without weights by sample")
    if padding not in (-1, None):
        raise at.refused(node, "`padding_idx` must be absent")
    step = arguments(offsets).get("step") if "arange" in str(getattr(offsets, "target", "")) else None
    source = indices.args[0] if "reshape" in str(indices.target) or "view" in str(indices.target) else None
    if not isinstance(step, int) or not isinstance(source, fx.Node) or len(at.shapes.get(source.name, ())) != 2:
        raise at.refused(node, "rows must come as (batch, bag), without offsets")
    at.masks.check_rows(node, source, len(table))
    name = at.add(FloatEmbedding, node, [at.value(node, source)], table=table, bag="mean" if mode == 1 else "sum")
    at.shapes[name] = (-1, table.shape[1])


def _mean(divided: bool) -> Handler:
    def handle(at: Matcher, node: fx.Node) -> None:
        given = arguments(node)
        source = at.value(node, given["self"])
        shape = at.shapes[source]
        axes = tuple(sorted(int(axis) % len(shape) for axis in given.get("dim") or range(len(shape))))
        if any(shape[axis] < 0 for axis in axes):
            raise at.refused(node, "a mean must not mix samples of the batch")
        if given.get("keepdim"):
            at.add(FloatMean, node, [source], axes=axes, divided=divided)
            return
        # What was observed has the node's name; the axes that it drops are dropped afterwards.
        kept, dropped = node.name, f"{node.name}.flat"
        at.add(FloatMean, node, [source], name=kept, axes=axes, divided=divided)
        at.shapes[kept] = tuple(1 if axis in axes else size for axis, size in enumerate(shape))
        at.add(FloatReshape, node, [kept], name=dropped, shape=at.shape(node))
        at.shapes[dropped] = at.shape(node)
        at.alias(node, dropped)

    return handle


def _concat(at: Matcher, node: fx.Node) -> None:
    given = arguments(node)
    rank = len(at.shape(node))
    axis = int(given["dim"]) % rank
    if at.shape(node)[axis] < 0:
        raise at.refused(node, "values must not be joined along the batch")
    # Caches of decoders begin with a tensor of nothing.
    parts = [
        each
        for each in given["tensors"]
        if not any(isinstance(size, int) and size == 0 for size in each.meta["val"].shape)
    ]
    if len(parts) == 1:
        _same_source(at, node, parts[0])
        return
    at.add(FloatConcat, node, [at.value(node, each) for each in parts], axis=axis)


def _reshape(at: Matcher, node: fx.Node) -> None:
    source = at.value(node, node.args[0])
    if at.shapes[source] == at.shape(node):
        at.alias(node, source)
    else:
        at.add(FloatReshape, node, [source], shape=at.shape(node))


def _permute(at: Matcher, node: fx.Node) -> None:
    source = at.value(node, node.args[0])
    at.add(FloatPermute, node, [source], order=permutation(node, len(at.shapes[source])))


def _slice(at: Matcher, node: fx.Node) -> None:
    given = arguments(node)
    source = at.value(node, given["self"])
    shape = at.shapes[source]
    axis = int(given["dim"]) % len(shape)
    if shape[axis] < 0:
        if at.shape(node) != shape:
            raise at.refused(node, "the batch must not be sliced")
        at.alias(node, source)
        return
    start, stop, step = slice(given["start"], given["end"], given["step"]).indices(shape[axis])
    if (start, stop, step) == (0, shape[axis], 1):
        at.alias(node, source)
    else:
        at.add(FloatSlice, node, [source], axis=axis, start=start, stop=stop, step=step)


def _select(at: Matcher, node: fx.Node) -> None:
    given = arguments(node)
    source = at.value(node, given["self"])
    shape = at.shapes[source]
    axis = int(given["dim"]) % len(shape)
    if shape[axis] < 0:
        raise at.refused(node, "one sample of the batch must not be selected")
    at_row = int(given["index"]) % shape[axis]
    cut = f"{node.name}.cut"
    at.add(FloatSlice, node, [source], name=cut, axis=axis, start=at_row, stop=at_row + 1)
    at.shapes[cut] = (*shape[:axis], 1, *shape[axis + 1 :])
    at.add(FloatReshape, node, [cut], shape=at.shape(node))


def _split(at: Matcher, node: fx.Node) -> None:
    given = arguments(node)
    parts = node.meta["val"]
    axis = int(given["dim"]) % parts[0].ndim
    at.split(node, axis, [at.size(node, part.shape[axis]) for part in parts])


def _taken(at: Matcher, node: fx.Node) -> None:
    """Parts of a value by constant numbers along one axis, or several next to each other: slices that are joined."""
    given = arguments(node)
    places: list[Any] = given.get("indices") or [None] * (int(given["dim"]) % len(at.shape(node))) + [given["index"]]
    source = at.value(node, node.args[0])
    shape, axes = at.shapes[source], [axis for axis, each in enumerate(places) if each is not None]
    first, after = axes[0], axes[-1] + 1
    sizes = shape[first:after]
    rows = [at.operand(node, places[axis]) for axis in axes]
    if any(isinstance(each, str) for each in rows) or len(axes) < len(sizes) or any(size < 0 for size in sizes):
        raise at.refused(
            node, "parts must be taken by constant numbers, of axes next to each other that are not the batch; read "
            "rows of a table by `nn.functional.embedding`"
        )  # fmt: skip
    numbers = np.stack([each.numpy() for each in torch.broadcast_tensors(*rows)])
    flat = np.ravel_multi_index(tuple(numbers.reshape(len(axes), -1)), sizes, mode="wrap")
    runs = _runs(flat.tolist())
    if not runs or len(runs) > _MOST_RUNS:
        raise at.refused(node, f"1 to {_MOST_RUNS} slices must make up what is taken, got {len(runs)}")
    wide, joined = f"{node.name}.axes", f"{node.name}.parts"
    at.shapes[wide] = (*shape[:first], math.prod(sizes), *shape[after:])
    at.add(FloatReshape, node, [source], name=wide, shape=at.shapes[wide])
    parts: list[str] = []
    for number, (start, count, step) in enumerate(runs):
        stop, name = start + (count - 1) * step + 1, f"{node.name}.{number}"
        parts.append(at.add(FloatSlice, node, [wide], name=name, axis=first, start=start, stop=stop, step=step))
        at.shapes[name] = (*shape[:first], count, *shape[after:])
    at.add(FloatConcat, node, parts, name=joined, axis=first)
    at.shapes[joined] = (*shape[:first], len(flat), *shape[after:])
    at.add(FloatReshape, node, [joined], shape=at.shape(node))


def _runs(numbers: list[int]) -> list[tuple[int, int, int]]:
    """Numbers as runs: the first of each, how many, and the step from one to the next."""
    found: list[tuple[int, int, int]] = []
    for number in numbers:
        start, count, step = found[-1] if found else (0, 0, 0)
        if found and number > start and (count == 1 or number == start + count * step):
            found[-1] = start, count + 1, step if count > 1 else number - start
        else:
            found.append((number, 1, 1))
    return found


def _expand(at: Matcher, node: fx.Node) -> None:
    """A constant or a value repeated along axes of size 1: by joining it with itself, but along the batch."""
    name = at.value(node, node.args[0])
    wanted, shape = at.shape(node), at.shapes[name]
    own = (*(1,) * (len(wanted) - len(shape)), *shape)
    if own != shape:
        name = at.add(FloatReshape, node, [name], name=f"{node.name}.own", shape=own)
        at.shapes[name] = own
    narrow = name
    for axis, (size, into) in enumerate(zip(own, wanted, strict=True)):
        if size != into and into > 0:
            own = (*own[:axis], into, *own[axis + 1 :])
            name = at.add(FloatConcat, node, [name] * into, name=f"{node.name}.{axis}", axis=axis)
            at.shapes[name] = own
    at.alias(node, name)
    at.narrow[name] = narrow


def _same_value(at: Matcher, node: fx.Node) -> None:
    _same_source(at, node, node.args[0])


def _same_source(at: Matcher, node: fx.Node, source: Any) -> None:
    at.alias(node, at.value(node, source))


def _converted(at: Matcher, node: fx.Node) -> None:
    value = node.meta["val"]
    source = at.value(node, node.args[0])
    before = node.args[0].meta["val"] if isinstance(node.args[0], fx.Node) else value
    if value.dtype.is_floating_point and not before.dtype.is_floating_point:
        raise at.refused(
            node, "whole numbers must not become real ones; convert them in the loader, such as by `x.float() / 255`, "
            "and leave it out of the module"
        )  # fmt: skip
    if before.dtype.is_floating_point and not value.dtype.is_floating_point:
        raise at.refused(
            node, "real numbers must not become whole ones or truth values; leave it out of the module, and give what "
            "comes of it as an input"
        )  # fmt: skip
    at.alias(node, source)


def _part(at: Matcher, node: fx.Node) -> None:
    at.part(node)


HANDLERS: dict[str, Handler] = {
    "linear": _linear,
    "addmm": _addmm,
    "conv2d": _convolution(False),
    "conv2d.padding": _convolution(False),
    "conv1d": _convolution(True),
    "conv1d.padding": _convolution(True),
    **dict.fromkeys(("batch_norm", "_native_batch_norm_legit_no_training"), _batch_norm),
    "max_pool2d": _pool("max", False),
    "max_pool1d": _pool("max", True),
    "avg_pool2d": _pool("mean", False),
    "avg_pool1d": _pool("mean", True),
    "adaptive_avg_pool2d": _adaptive_pool("mean", False),
    "adaptive_avg_pool1d": _adaptive_pool("mean", True),
    "adaptive_max_pool2d": _adaptive_pool("max", False),
    "adaptive_max_pool1d": _adaptive_pool("max", True),
    **POINTWISE,
    "add.Tensor": _sum_of(1.0),
    "sub.Tensor": _sum_of(-1.0),
    "mul.Tensor": _product,
    "div.Tensor": _quotient,
    **dict.fromkeys(("matmul", "bmm", "mm"), _matmul),
    "scaled_dot_product_attention": _attention,
    **dict.fromkeys(("softmax.int", "_softmax"), _softmax(False)),
    **dict.fromkeys(("log_softmax.int", "_log_softmax"), _softmax(True)),
    "layer_norm": _norm,
    "embedding": _embedding,
    "embedding_bag.padding_idx": _embedding_bag,
    **dict.fromkeys(("mean.dim", "mean"), _mean(True)),
    **dict.fromkeys(("sum.dim_IntList", "sum"), _mean(False)),
    **dict.fromkeys(("cat", "concat"), _concat),
    **dict.fromkeys(("view", "reshape", "_unsafe_view", "flatten.using_ints", "unflatten.int"), _reshape),
    **dict.fromkeys(("unsqueeze", "squeeze", "squeeze.dim", "squeeze.dims"), _reshape),
    **dict.fromkeys(("permute", "transpose.int", "t"), _permute),
    **dict.fromkeys(("index.Tensor", "index_select"), _taken),
    "slice.Tensor": _slice,
    "select.int": _select,
    **dict.fromkeys(("chunk", "split.Tensor", "split_with_sizes", "split.sizes"), _split),
    "expand": _expand,
    **dict.fromkeys(DROPOUTS, _same_value),
    **dict.fromkeys(("contiguous", "clone", "detach", "alias", "lift_fresh_copy", "identity"), _same_value),
    **dict.fromkeys(("to.dtype", "to.dtype_layout", "_to_copy", "to.device", "type_as"), _converted),
    "getitem": _part,
    **GIVEN,
}  # fmt: skip
"""By the operation's name and overload, without ``aten`` and ``default``; in-place forms are the same."""


def handlers() -> dict[str, Handler]:
    """All of them, those of in-place forms included."""
    found = dict(HANDLERS)
    for name, handler in HANDLERS.items():
        base, dot, overload = name.partition(".")
        found.setdefault(f"{base}_{dot}{overload}", _in_place(handler))
    return found


def _in_place(handler: Handler) -> Handler:
    def handle(at: Matcher, node: fx.Node) -> None:
        handler(at, node)
        at.replace(node)

    return handle

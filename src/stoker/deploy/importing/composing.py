# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Operations of torch that are written as others before the graph is matched, in a few lines of torch each.

What they are made of is observed and rounded as if the program had it. A function has the arguments of its operation,
and gives ``NotImplemented`` where the operation is to stay and be refused.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional

_aten: Any = torch.ops.aten


def composed(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """The program with those operations written as others; itself if it has none."""
    _join_norms(program.graph)
    if not any(node.target in COMPOSED for node in program.graph.nodes):
        return program
    with warnings.catch_warnings():
        # torch 2.13 warns of one of its classes when it captures a graph again.
        warnings.filterwarnings("ignore", message=".*LeafSpec", category=FutureWarning)
        return program.run_decompositions(COMPOSED)


def _join_norms(graph: fx.Graph) -> None:
    """Makes one operation of each norm of root mean squares that is written out: its squares would be rounded.

    ``x * rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)`` and ``x / sqrt(...)``, as decoders have them.
    """
    for node in list(graph.nodes):
        of = _rooted_mean(node)
        if of is None:
            continue
        source, eps = of
        for user in list(node.users):
            factors = [each for each in user.args if isinstance(each, fx.Node)]
            others = factors[:1] if user.target == _aten.div.Tensor else [each for each in factors if each is not node]
            wanted = _aten.mul.Tensor if node.target == _aten.rsqrt.default else _aten.div.Tensor
            if user.target != wanted or len(others) != 1 or _unconverted(others[0]) is not source:
                continue
            with graph.inserting_before(user):
                norm = graph.call_function(_aten.rms_norm.default, (others[0], [int(others[0].meta["val"].shape[-1])]))
            norm.args, norm.meta = (*norm.args, None, eps), dict(user.meta)
            user.replace_all_uses_with(norm)
            graph.erase_node(user)
    graph.eliminate_dead_code()


def _rooted_mean(node: fx.Node) -> tuple[fx.Node, float] | None:
    """Whose mean square over the last axis a node is the root of, or one over the root, and what is added to it."""
    if node.target not in (_aten.rsqrt.default, _aten.sqrt.default):
        return None
    mean, eps = node.args[0], 0.0
    if isinstance(mean, fx.Node) and mean.target == _aten.add.Tensor and isinstance(mean.args[1], (int, float)):
        if mean.kwargs:  # a factor
            return None
        mean, eps = mean.args[0], float(mean.args[1])
    if not isinstance(mean, fx.Node) or mean.target != _aten.mean.dim or len(mean.args) != 3 or not mean.args[2]:
        return None
    square, axes = mean.args[0], mean.args[1]
    assert isinstance(square, fx.Node)
    if axes not in ([-1], [square.meta["val"].ndim - 1]):
        return None
    squared = square.target == _aten.pow.Tensor_Scalar and square.args[1] == 2
    squared = squared or square.target == _aten.square.default
    squared = squared or (square.target == _aten.mul.Tensor and square.args[0] is square.args[1])
    source = square.args[0]
    if not squared or not isinstance(source, fx.Node) or not isinstance(source.meta["val"].shape[-1], int):
        return None
    return _unconverted(source), eps


def _unconverted(node: fx.Node) -> fx.Node:
    """What a node was converted from, both of real numbers: whole ones are rounded."""
    while node.target in (_aten.to.dtype, _aten._to_copy.default) and isinstance(node.args[0], fx.Node):
        if not all(each.meta["val"].dtype.is_floating_point for each in (node, node.args[0])):
            break
        node = node.args[0]
    return node


def _group_norm(
    x: Tensor, groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5, _: bool = True
) -> Tensor:
    rows = x.reshape(x.shape[0], groups, -1)
    normal = functional.layer_norm(rows, [rows.shape[-1]], eps=eps).reshape(x.shape)
    if weight is None:
        return normal
    return functional.batch_norm(normal, torch.zeros_like(weight), torch.ones_like(weight), weight, bias, eps=0.0)


def _instance_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, variance: Tensor | None, own: bool,
    _: float, eps: float, __: bool,
) -> Tensor:  # fmt: skip
    if own:
        return _group_norm(x, x.shape[1], weight, bias, eps)
    return functional.batch_norm(x, mean, variance, weight, bias, eps=eps)


def _rms_norm(x: Tensor, shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None) -> Any:
    """A layer norm of a row and its negative, whose mean is 0 and whose variance is the row's mean square."""
    if len(shape) != 1:
        return NotImplemented
    gain = None if weight is None else torch.cat([weight, weight])
    least = torch.finfo(x.dtype).eps if eps is None else eps
    both = functional.layer_norm(torch.cat([x, -x], -1), [2 * shape[0]], gain, eps=least)
    return both.narrow(-1, 0, shape[0])


def _prelu(x: Tensor, weight: Tensor) -> Tensor:
    return x.clamp(min=0) + weight.reshape(-1, *(1,) * (x.ndim - 2)) * x.clamp(max=0)


def _glu(x: Tensor, dim: int = -1) -> Tensor:
    first, second = x.chunk(2, dim)
    return first * second.sigmoid()


def _stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    return torch.cat([each.unsqueeze(dim) for each in tensors], dim)


def _unbind(x: Tensor, dim: int = 0) -> Any:
    size = x.shape[dim]
    return tuple(x.select(dim, at) for at in range(size)) if dim % x.ndim else NotImplemented


def _repeat(x: Tensor, repeats: Sequence[int | torch.SymInt]) -> Any:
    counts = [each for each in repeats if isinstance(each, int)]
    if not x.ndim <= len(counts) == len(repeats):
        return NotImplemented  # so often as there are samples: a constant
    found = x.reshape(*(1,) * (len(repeats) - x.ndim), *x.shape)
    for axis, count in enumerate(counts):
        if count > 1:
            found = torch.cat([found] * count, axis)
    return found


def _tile(x: Tensor, dims: Sequence[int]) -> Any:
    return _repeat(x, (*(1,) * (x.ndim - len(dims)), *dims))


def _hstack(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat(list(tensors), min(1, tensors[0].ndim - 1))


def _roll(x: Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Any:
    for shift, dim in zip(shifts, dims, strict=bool(dims)):
        size = x.shape[dim]
        first = -shift % size
        x = torch.cat([x.narrow(dim, first, size - first), x.narrow(dim, 0, first)], dim) if first else x
    return x if dims else NotImplemented


def _flip(x: Tensor, dims: Sequence[int]) -> Any:
    for dim in dims:
        if not dim % x.ndim:
            return NotImplemented
        x = torch.cat([x.narrow(dim, at, 1) for at in range(x.shape[dim] - 1, -1, -1)], dim)
    return x


def _filled(number: float) -> Callable[..., Tensor]:
    """A tensor of one number that has a dtype of another, and perhaps its sizes: of sizes alone, so a constant."""

    def filled(x: Tensor, sizes: Sequence[Any] | None = None, *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
        return torch.full(list(x.shape if sizes is None else sizes), number, dtype=dtype or x.dtype)

    return filled


def _pixel_shuffle(x: Tensor, by: int) -> Tensor:
    batch, channels, height, width = x.shape
    parts = x.reshape(batch, channels // by**2, by, by, height, width).permute(0, 1, 4, 2, 5, 3)
    return parts.reshape(batch, channels // by**2, height * by, width * by)


def _pixel_unshuffle(x: Tensor, by: int) -> Tensor:
    batch, channels, height, width = x.shape
    parts = x.reshape(batch, channels, height // by, by, width // by, by).permute(0, 1, 3, 5, 2, 4)
    return parts.reshape(batch, channels * by**2, height // by, width // by)


def _channel_shuffle(x: Tensor, groups: int) -> Tensor:
    return x.reshape(x.shape[0], groups, -1, *x.shape[2:]).transpose(1, 2).reshape(x.shape)


def _upsample_nearest(x: Tensor, sizes: Sequence[int] | None, factors: Sequence[float] | None) -> Any:
    """By whole factors, each way.

    Of other factors torch chooses the elements by the factor that was written, not by the sizes that come of it.
    """
    if sizes is None and not all(max(by, 1 / by).is_integer() for by in factors or ()):
        return NotImplemented
    wanted = sizes or [math.floor(size * by) for size, by in zip(x.shape[2:], factors or (), strict=True)]
    for axis, (size, into) in enumerate(zip(x.shape[2:], wanted, strict=True), 2):
        if into % size == 0:
            wide = x.unsqueeze(axis + 1)
            wide = wide.expand(*(into // size if at == axis + 1 else -1 for at in range(wide.ndim)))
            x = wide.reshape(*x.shape[:axis], into, *x.shape[axis + 1 :])
        elif size % into == 0:
            rows = x.reshape(*x.shape[:axis], into, size // into, *x.shape[axis + 1 :])
            x = rows.select(axis + 1, 0)
        else:
            return NotImplemented
    return x


def _pad(x: Tensor, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Tensor:
    for axis, (before, after) in zip(
        range(x.ndim - 1, -1, -1), zip(pad[::2], pad[1::2], strict=True), strict=False
    ):  # fmt: skip
        if before < 0 or after < 0:
            start = max(-before, 0)
            x = x.narrow(axis, start, x.shape[axis] - start - max(-after, 0))
        parts = [_border(x, axis, max(before, 0), mode, value, True), x, _border(x, axis, max(after, 0), mode, value)]
        x = torch.cat([each for each in parts if each is not None], axis) if before > 0 or after > 0 else x
    return x


def _border(x: Tensor, axis: int, count: int, mode: str, value: float | None, first: bool = False) -> Tensor | None:
    """What lies before (first) or after a value along an axis."""
    if count == 0:
        return None
    size = x.shape[axis]
    if mode == "constant":
        sizes = [count if at == axis else each for at, each in enumerate(x.shape)]
        return torch.full(sizes, value or 0.0, dtype=x.dtype)  # of sizes alone, so that it is a constant
    if mode == "circular":
        return x.narrow(axis, size - count if first else 0, count)
    places = range(count, 0, -1) if first else range(size - 2, size - 2 - count, -1)
    if mode == "replicate":
        places = [0 if first else size - 1] * count
    return torch.cat([x.narrow(axis, at, 1) for at in places], axis)


def _amax(x: Tensor, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
    """A pool over an image whose columns are what the largest is taken of."""
    axes = sorted(axis % x.ndim for axis in dim)
    if not axes or axes[0] == 0:
        return NotImplemented
    kept = [axis for axis in range(1, x.ndim) if axis not in axes]
    size = math.prod(x.shape[axis] for axis in axes)
    rows = x.permute(0, *kept, *axes).reshape(x.shape[0], 1, math.prod(x.shape[axis] for axis in kept), size)
    shape = [1 if axis in axes else each for axis, each in enumerate(x.shape) if keepdim or axis not in axes]
    return functional.max_pool2d(rows, (1, size)).reshape(shape)


def _amin(x: Tensor, dim: Sequence[int] = (), keepdim: bool = False) -> Any:
    found = _amax(-x, dim, keepdim)
    return found if found is NotImplemented else -found


def _max_along(x: Tensor, dim: int, keepdim: bool = False) -> Any:
    found = _amax(x, [dim], keepdim)
    return found if found is NotImplemented else (found, x.argmax(dim, keepdim))


def _min_along(x: Tensor, dim: int, keepdim: bool = False) -> Any:
    found = _amin(x, [dim], keepdim)
    return found if found is NotImplemented else (found, x.argmin(dim, keepdim))


def _maximum(x: Tensor, other: Tensor) -> Tensor:
    return x + (other - x).clamp(min=0)


def _minimum(x: Tensor, other: Tensor) -> Tensor:
    return x - (x - other).clamp(min=0)


def _addcmul(x: Tensor, first: Tensor, second: Tensor, *, value: float = 1) -> Tensor:
    return x + value * (first * second)


def _lerp(x: Tensor, end: Tensor, weight: Any) -> Tensor:
    return x + weight * (end - x)


def _baddbmm(x: Tensor, first: Tensor, second: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return beta * x + alpha * torch.bmm(first, second)


_BY_TORCH = (
    _aten.expand_as.default, _aten.movedim.int, _aten.movedim.intlist, _aten.moveaxis.int,
    _aten.swapaxes.default, _aten.swapdims.default, _aten.narrow.default,
    _aten.tensor_split.sections, _aten.tensor_split.indices, _aten.mT.default,
)  # fmt: skip
"""Those that torch itself composes of others."""

OTHER_NAMES: dict[str, Callable[..., Any]] = {
    "multiply": torch.mul, "subtract": torch.sub, "divide": torch.div, "true_divide": torch.div, "greater": torch.gt,
    "greater_equal": torch.ge, "less": torch.lt, "less_equal": torch.le, "not_equal": torch.ne,
}  # fmt: skip
"""Operations on a tensor and a tensor or number that have another name."""

COMPOSED: dict[Any, Callable[..., Any]] = {
    **{each: each.decompose for each in _BY_TORCH},
    **{getattr(getattr(_aten, name), of): each for name, each in OTHER_NAMES.items() for of in ("Tensor", "Scalar")},
    _aten.concatenate.default: torch.cat,
    _aten.clip.default: torch.clamp,
    _aten.negative.default: torch.neg,
    _aten.absolute.default: torch.abs,
    _aten.group_norm.default: _group_norm,
    _aten.instance_norm.default: _instance_norm,
    _aten.rms_norm.default: _rms_norm,
    _aten.prelu.default: _prelu,
    _aten.glu.default: _glu,
    _aten.stack.default: _stack,
    _aten.unbind.int: _unbind,
    _aten.repeat.default: _repeat,
    _aten.tile.default: _tile,
    _aten.hstack.default: _hstack,
    _aten.roll.default: _roll,
    _aten.flip.default: _flip,
    **dict.fromkeys((_aten.new_zeros.default, _aten.zeros_like.default), _filled(0)),
    **dict.fromkeys((_aten.new_ones.default, _aten.ones_like.default), _filled(1)),
    _aten.pixel_shuffle.default: _pixel_shuffle,
    _aten.pixel_unshuffle.default: _pixel_unshuffle,
    _aten.channel_shuffle.default: _channel_shuffle,
    _aten.upsample_nearest1d.vec: _upsample_nearest,
    _aten.upsample_nearest2d.vec: _upsample_nearest,
    _aten.pad.default: _pad,
    _aten.amax.default: _amax,
    _aten.amin.default: _amin,
    _aten.max.dim: _max_along,
    _aten.min.dim: _min_along,
    _aten.maximum.default: _maximum,
    _aten.minimum.default: _minimum,
    _aten.addcmul.default: _addcmul,
    _aten.lerp.Scalar: _lerp,
    _aten.lerp.Tensor: _lerp,
    _aten.baddbmm.default: _baddbmm,
}
"""By the operation."""

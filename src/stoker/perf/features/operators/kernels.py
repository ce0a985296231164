# pyright: reportIncompatibleMethodOverride=false
# (torch's autograd functions are untyped)
"""Kernels that CUDA has and this CPU lacks: fused attention, norms, recurrent layers and cells, both passes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from stoker.perf.features.operators import scratch
from stoker.perf.features.operators.costs import Cost, Touch, attention_dims, causal_pairs, simple, touched
from stoker.perf.features.operators.formulas import NORM_FLOPS, RMS_NORM_BACKWARD
from stoker.perf.features.operators.scratch import recurrent_reserve

Record = Callable[[str, Cost, torch.dtype], None]
GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}


def attention_kernel(dtype: torch.dtype, head_dims: tuple[int, int], *, masked: bool) -> str:
    """The kernel that torch picks for scaled dot product attention on CUDA.

    Args:
        dtype: of the queries.
        head_dims: of queries and of values.
        masked: whether a mask tensor is given; the flag for a causal mask does not count.

    Source: the checks of aten/src/ATen/native/transformers/cuda/sdp_utils.cpp; flags that the program sets by
    `sdpa_kernel` are kept.
    """
    flags = torch.backends.cuda
    half = dtype in (torch.float16, torch.bfloat16)
    alike = head_dims[0] == head_dims[1]
    if half and not masked and alike and head_dims[0] <= 256 and flags.flash_sdp_enabled():
        return "flash"
    aligned = all(dim % (8 if half else 4) == 0 for dim in head_dims)
    if aligned and (half or dtype is torch.float32) and flags.mem_efficient_sdp_enabled():
        return "efficient"
    return "math"


def _all(*tensors: Tensor | None) -> list[Touch]:
    return [touched(tensor) for tensor in tensors if tensor is not None]


class Attention(torch.autograd.Function):
    """One kernel per pass; the backward pass recomputes the scores: five products instead of two."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, name: str, record: Record
    ) -> Tensor:
        """Shapes of the result."""
        out = q.new_empty((*q.shape[:-1], v.shape[-1]))
        sums = q.new_empty(q.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(q, k, v, mask, out, sums)
        heads = math.prod(q.shape[:-2])
        pairs = heads * causal_pairs(q.shape[-2], k.shape[-2], causal)
        ctx.dims = attention_dims(q, k, v)
        ctx.rest = name, pairs, record
        flops = 2.0 * pairs * (q.shape[-1] + v.shape[-1])
        record(name, Cost("attention", flops, ctx.dims, _all(q, k, v, mask), _all(out, sums)), q.dtype)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        """Shapes of the gradients."""
        q, k, v, mask, out, sums = ctx.saved_tensors
        name, pairs, record = ctx.rest
        wanted = ctx.needs_input_grad
        grads = [torch.empty_like(t) if w else None for t, w in zip((q, k, v, mask), wanted, strict=False)]
        flops = 2.0 * pairs * (3 * q.shape[-1] + 2 * v.shape[-1])
        taken = scratch.attention_backward(q)
        cost = Cost("attention", flops, ctx.dims, _all(q, k, v, mask, out, sums, grad), _all(*grads), taken)
        record(f"{name}_backward", cost, q.dtype)
        return (*grads, None, None, None)


class Recurrent(torch.autograd.Function):
    """All layers, directions and time steps as one call, as in cuDNN.

    Bytes: inputs, outputs and gates once. The recurrent matrix is read at each time step; kept on the chip (as cuDNN's
    persistent kernels do) it would be read once.
    """

    @staticmethod
    def forward(
        ctx: Any, name: str, steps: int, hidden: int, directions: int, record: Record, shape: tuple[int, ...],
        batch_first: bool, x: Tensor, h: Tensor, c: Tensor | None, *weights: Tensor,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """Shapes of output and last states. ``shape`` is the output's; the size of a projection is its last one.

        The kernel has time first in memory: with the batch first, the input is copied for it in each pass, the
        output's gradient in the backward pass, and the output is a view (``_cudnn_impl`` and ``_cudnn_rnn_backward``
        in aten/src/ATen/native/cudnn/RNN.cpp; a recorded run shows the copies).
        """
        gates = GATES[name]
        matrices = [weight for weight in weights if weight.dim() == 2]
        tokens = math.prod(x.shape[:-1])
        turned = batch_first and len(shape) == 3
        copies = [torch.empty_like(x)] if turned else []
        out = x.new_empty((shape[1], shape[0], shape[2])).transpose(0, 1) if turned else x.new_empty(shape)
        layers = h.shape[0]
        states = [x.new_empty(each.shape, dtype=each.dtype) for each in (h, c) if each is not None]
        # The last, behind the workspace (``_cudnn_rnn``; in a recorded run the workspace left a hole below it).
        reserve = x.new_empty((recurrent_reserve(gates, layers, directions), tokens, hidden))
        ctx.save_for_backward(x, h, c, out, reserve, *weights)
        width = sum(matrix.numel() for matrix in matrices)
        # Matrices that multiply the state: one row per gate, as many columns as the state has.
        again = sum(m.numel() * m.element_size() for m in matrices[1::2]) * (steps - 1)
        flops = 2.0 * tokens * width + 10.0 * tokens * layers * hidden
        taken = scratch.recurrent(tokens * hidden * directions * x.element_size(), sum(each.nbytes for each in weights))
        ctx.rest = name, flops, again, taken, record, turned
        ctx.dims = (tokens, steps, x.shape[-1], hidden, layers, gates)
        reads = [*_all(x, h, c, *weights), Touch(matrices[1], again)]
        made = _all(*copies, out, *states, reserve)
        record(name, Cost("rnn", flops, ctx.dims, reads, made, taken, num_late_outputs=1), x.dtype)
        return (out, *states)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *state_grads: Tensor) -> tuple[Any, ...]:
        """Shapes of the gradients; both products of each forward product. Those of weights are one piece of memory."""
        x, h, c, out, reserve, *weights = ctx.saved_tensors
        name, flops, again, taken, record, turned = ctx.rest
        wanted = ctx.needs_input_grad[7:]
        copies = [torch.empty_like(x), torch.empty_like(grad)] if turned else []
        grads = [
            torch.empty_like(t) if w and t is not None else None for t, w in zip((x, h, c), wanted[:3], strict=True)
        ]
        sizes = [weight.numel() for weight in weights]
        parts = weights[0].new_empty(sum(sizes)).split(sizes)
        grads += [
            part.view(weight.shape) if w else None for part, weight, w in zip(parts, weights, wanted[3:], strict=True)
        ]
        matrix = next(weight for weight in weights if weight.dim() == 2)
        reads = [*_all(x, h, c, out, reserve, grad, *weights), Touch(matrix, again)]
        # The gates' gradients are written once and read by the products for the weights.
        gates = touched(reserve)
        cost = Cost("rnn", 2 * flops, ctx.dims, [*reads, gates], [*_all(*copies, *grads), gates], taken)
        record(f"{name}_backward", cost, x.dtype)
        return (None, None, None, None, None, None, None, *grads)


class RmsNorm(torch.autograd.Function):
    """One kernel per pass, where this CPU would take eight."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, width: int, record: Record) -> Tensor:
        """Shapes of the result."""
        out = torch.empty_like(x)
        scale = x.new_empty(x.numel() // width, dtype=torch.float32)
        ctx.save_for_backward(x, weight, scale)
        ctx.record = record
        record("_fused_rms_norm", simple("norm", NORM_FLOPS)((), _known(x, weight), [out, scale]), x.dtype)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        """Shapes of the gradients."""
        x, weight, scale = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        grads = [
            torch.empty_like(t) if w and t is not None else None for t, w in zip((x, weight), wanted, strict=False)
        ]
        cost = RMS_NORM_BACKWARD((), _known(grad, x, scale, weight), _known(*grads))
        ctx.record("_fused_rms_norm_backward", cost, x.dtype)
        return (*grads, None, None)


class Cell(torch.autograd.Function):
    """Gates of one step of an LSTM or GRU, given their products.

    ``state`` is the cell's of an LSTM and the hidden one of a GRU; the workspace holds 4 or 5 numbers for each element.
    """

    @staticmethod
    def forward(
        ctx: Any, name: str, record: Record, inner: Tensor, recurrent: Tensor, state: Tensor, *biases: Tensor | None
    ) -> tuple[Tensor, ...]:
        """Shapes of the new states."""
        lstm = name == "lstm_cell"
        outs = [torch.empty_like(state) for _ in range(2 if lstm else 1)]
        workspace = state.new_empty((state.shape[0], (4 if lstm else 5) * state.shape[1]))
        ctx.save_for_backward(workspace, state, outs[-1] if lstm else None, inner, *biases)
        ctx.rest = name, record, recurrent.shape
        ins = _known(inner, recurrent, state, *biases)
        record(f"_thnn_fused_{name}", simple("pointwise", 5.0)((), ins, [*outs, workspace]), inner.dtype)
        return tuple(outs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        """Shapes of the gradients; both products get the same one in an LSTM."""
        workspace, state, new, inner, *biases = ctx.saved_tensors
        name, record, shape = ctx.rest
        gates = inner.new_empty(shape)
        both = gates if name == "lstm_cell" else torch.empty_like(gates)
        before = torch.empty_like(state)
        bias = [gates.sum(0) if b is not None else None for b in biases]
        cost = simple("pointwise", 8.0)((), _known(workspace, state, new, *grads), [gates, before])
        record(f"_thnn_fused_{name}_backward", cost, inner.dtype)
        return (None, None, gates, both, before, *bias)


def _known(*tensors: Tensor | None) -> list[Tensor]:
    return [tensor for tensor in tensors if tensor is not None]

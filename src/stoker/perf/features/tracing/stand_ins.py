# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false
"""Torch's functions as on CUDA, where this CPU would use other kernels: one recorded kernel instead of many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor

from stoker.perf.features.operators.kernels import Attention, Cell, Recurrent, RmsNorm, attention_kernel
from stoker.perf.features.torch_private import FUNCTIONS, NEURAL, attention_math
from stoker.perf.features.tracing.recorder import DispatchRecorder

_SDPA: Any = functional.scaled_dot_product_attention
_DROPOUT: Any = functional.dropout
_RMS_NORM: Any = functional.rms_norm


class StandIns:
    """Stand-ins for CUDA's kernels of attention, norms, dropout and recurrent layers.

    Args:
        recorder: keeps their calls.
    """

    def __init__(self, recorder: DispatchRecorder) -> None:
        self._record, self._number = recorder.record, recorder.buffers.number
        self.functional: dict[str, Callable[..., Any]] = {
            "scaled_dot_product_attention": self._attention,
            "dropout": self._dropout,
            "rms_norm": self._rms_norm,
        }
        """Replacements by their name in ``torch.nn.functional``, whose functions call each other by name."""
        self.handlers: dict[Any, Callable[..., Any]] = {
            _SDPA: self._attention,
            NEURAL.scaled_dot_product_attention: self._attention,
            _DROPOUT: self._dropout,
            torch.dropout: self._dropout,
            _RMS_NORM: self._rms_norm,
            torch.rms_norm: self._rms_norm,
            FUNCTIONS.lstm_cell: lambda *args: self._cell("lstm_cell", *args),
            FUNCTIONS.gru_cell: lambda *args: self._cell("gru_cell", *args),
        }
        """Replacements by torch's function."""
        for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
            self.handlers[getattr(FUNCTIONS, name)] = lambda *args, _name=name: self._recurrent(_name, *args)

    def _attention(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> Tensor:  # fmt: skip
        """Scaled dot product attention with the kernel that CUDA would use."""
        query, key, value = _cast(query, key, value)
        name = attention_kernel(query.dtype, (query.shape[-1], value.shape[-1]), masked=attn_mask is not None)
        if name == "math":
            return attention_math(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )[0]
        return Attention.apply(query, key, value, attn_mask, is_causal, f"attention.{name}", self._record)

    def _dropout(self, x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        """One kernel, whose mask is a byte an element (is_fused_kernel_acceptable of ATen/native/Dropout.cpp)."""
        if training and not inplace and 0 < p < 1 and x.numel():
            return torch.native_dropout(x, p, True)[0]
        return _DROPOUT(x, p, training, inplace)

    def _rms_norm(
        self, x: Tensor, normalized_shape: list[int], weight: Tensor | None = None, eps: float | None = None
    ) -> Tensor:
        """One kernel where the weight has the input's precision (aten/src/ATen/native/layer_norm.cpp)."""
        if weight is not None and weight.dtype is not x.dtype:
            return _RMS_NORM(x, normalized_shape, weight, eps)
        return RmsNorm.apply(x, weight, torch.Size(normalized_shape).numel(), self._record)

    def _cell(self, name: str, x: Tensor, state: Any, inner: Tensor, recurrent: Tensor, *biases: Tensor | None) -> Any:
        """Two products, then one kernel for all gates."""
        h, c = state if name == "lstm_cell" else (state, state)
        made = functional.linear(x, inner), functional.linear(h, recurrent)
        if c.dtype is not made[0].dtype:
            c = c.to(made[0].dtype)
        found = Cell.apply(name, self._record, *made, c, *biases)
        return tuple(found) if name == "lstm_cell" else found[0]

    def _recurrent(self, name: str, x: Tensor, second: Any, *rest: Any) -> tuple[Tensor, ...]:
        """An LSTM, GRU or plain RNN; ``second`` is the batch sizes of a packed sequence, or the first states."""
        packed = isinstance(second, Tensor) and second.dtype is torch.int64
        states, weights = (rest[0], rest[1]) if packed else (second, rest[0])
        flags = rest[2:] if packed else rest[1:]
        both = bool(flags[4])
        batch_first = not packed and bool(flags[5])
        h, c = states if isinstance(states, (tuple, list)) else (states, None)
        x, h, *weights = _cast(x, h, *weights)
        c = _cast(c)[0] if c is not None else None
        for each in (h, c):
            if each is not None:  # also zeros that torch made: they are there before any result
                self._number(each)
        steps = second.numel() if packed else x.shape[1 if batch_first else 0]
        directions = 2 if both else 1
        hidden = (c if c is not None else h).shape[-1]
        shape = (*x.shape[:-1], directions * h.shape[-1])
        found = Recurrent.apply(name, steps, hidden, directions, self._record, shape, batch_first, x, h, c, *weights)
        return tuple(found)


def _cast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The tensors in the precision of automatic mixed precision, if that is on."""
    if not torch.is_autocast_enabled("cpu"):
        return tensors
    dtype = torch.get_autocast_dtype("cpu")
    return tuple(tensor.to(dtype) for tensor in tensors)

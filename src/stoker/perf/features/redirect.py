# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false, reportUnknownParameterType=false, reportMissingTypeArgument=false
# pyright: reportUnnecessaryIsInstance=false, reportPrivateImportUsage=false, reportUnknownLambdaType=false
# pyright: reportAttributeAccessIssue=false
"""Torch functions that are changed before they reach dispatch: devices, and kernels that this CPU has not.

A CPU build of torch aborts the process when a cuda tensor, fake or not, reaches its autograd, so no such tensor is ever
made: what the program puts on an accelerator stays on the CPU's side.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor
from torch.overrides import TorchFunctionMode

from stoker.perf.features.formulas import simple, touched
from stoker.perf.features.kernels import Attention, Recurrent, attention_kernel
from stoker.perf.features.recorder import Recorder

_HALF = (torch.float16, torch.bfloat16)
_SDPA: Any = functional.scaled_dot_product_attention
_MATH: Any = torch._C._VariableFunctions._scaled_dot_product_attention_math
_FP32 = [
    "softmax", "log_softmax", "layer_norm", "group_norm", "rms_norm", "cross_entropy", "nll_loss", "mse_loss",
    "l1_loss", "smooth_l1_loss", "kl_div", "softplus", "softmin", "cosine_similarity",
    "binary_cross_entropy_with_logits",
]  # fmt: skip
"""Functions that CUDA's autocast computes in float32 and the CPU's does not (torch.amp's op reference)."""
_FP32_FUNCTIONS: set[Any] = {
    found
    for owner in (functional, torch, Tensor)
    for name in [*_FP32, "exp", "log", "pow", "sum", "cumsum", "prod", "norm", "rsqrt", "reciprocal", "logsumexp"]
    if (found := getattr(owner, name, None)) is not None and not (owner is functional and name in ("exp", "sum"))
}


class Redirect(TorchFunctionMode):
    """Answers for an accelerator of kind ``target`` with tensors of the CPU's.

    Args:
        recorder: keeps the calls of fused kernels.
        target: ``cuda`` or ``cpu``.
    """

    def __init__(self, recorder: Recorder, target: str) -> None:
        super().__init__()
        self._recorder = recorder
        self._target = target
        self.moved_bytes = 0
        """Of what was copied to the accelerator during the step."""
        variable: Any = torch._C._VariableFunctions
        self._handlers: dict[Any, Callable[..., Any]] = {
            Tensor.cuda: self._moved,
            Tensor.pin_memory: lambda x, *_, **__: x,
            Tensor.to: self._to,
            _SDPA: self.attention,
            torch._C._nn.scaled_dot_product_attention: self.attention,
            variable._pack_padded_sequence: self._pack,
            variable._pad_packed_sequence: self._unpack,
        }
        for name in ("lstm", "gru", "rnn_tanh", "rnn_relu"):
            self._handlers[getattr(variable, name)] = lambda *args, _name=name: self._recurrent(_name, *args)

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Makes one call, or what stands for it."""
        kwargs = kwargs or {}
        if kwargs.get("device") is not None and _is_accelerator(kwargs["device"]):
            kwargs = {**kwargs, "device": "cpu"}
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        handler = self._handlers.get(func)
        if handler is not None:
            return handler(*args, **kwargs)
        if self._target == "cuda" and torch.is_autocast_enabled("cpu") and func in _FP32_FUNCTIONS:
            args = tuple(_float(arg) for arg in args)
        return func(*args, **kwargs)

    def _moved(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
        self.moved_bytes += x.numel() * x.element_size()
        return x

    def _to(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if (
            any(_is_accelerator(arg) for arg in args if isinstance(arg, (str, torch.device)))
            or str(kwargs.get("device")) == "cpu"
        ):
            self._moved(x)
        args = tuple("cpu" if isinstance(arg, (str, torch.device)) and _is_accelerator(arg) else arg for arg in args)
        return Tensor.to(x, *args, **kwargs)

    def attention(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0,
        is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
    ) -> Tensor:  # fmt: skip
        """Scaled dot product attention by the kernel that the target would take."""
        if torch.is_autocast_enabled("cpu"):
            dtype = torch.get_autocast_dtype("cpu")
            query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
        name = attention_kernel(
            query.dtype, (query.shape[-1], value.shape[-1]), masked=attn_mask is not None, dropout=dropout_p > 0,
            mask_learns=attn_mask is not None and attn_mask.requires_grad, target=self._target,
        )  # fmt: skip
        if name == "math":
            return _MATH(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)[0]
        return Attention.apply(query, key, value, attn_mask, is_causal, f"attention.{name}", self._recorder.record)

    def _recurrent(self, name: str, x: Tensor, second: Any, *rest: Any) -> tuple[Tensor, ...]:
        """An LSTM, GRU or plain RNN; ``second`` is the batch sizes of a packed sequence, or the first states."""
        packed = isinstance(second, Tensor) and second.dtype is torch.int64
        states, weights = (rest[0], rest[1]) if packed else (second, rest[0])
        flags = rest[2:] if packed else rest[1:]
        both = bool(flags[4])
        batch_first = not packed and bool(flags[5])
        h, c = states if isinstance(states, (tuple, list)) else (states, None)
        if torch.is_autocast_enabled("cpu"):
            dtype = torch.get_autocast_dtype("cpu")
            x, h, weights = x.to(dtype), h.to(dtype), [weight.to(dtype) for weight in weights]
            c = c.to(dtype) if c is not None else None
        steps = second.numel() if packed else x.shape[1 if batch_first else 0]
        directions = 2 if both else 1
        hidden = (c if c is not None else h).shape[-1]
        shape = (*x.shape[:-1], directions * h.shape[-1])
        found = Recurrent.apply(name, steps, hidden, directions, self._recorder.record, shape, x, h, c, *weights)
        return tuple(found)

    def _pack(self, x: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
        """Rows of known lengths one after another by time; how many rows are left at each time."""
        rows = lengths.tolist()
        time = torch.arange(max(rows))
        sizes = (lengths.unsqueeze(0) > time.unsqueeze(1)).sum(1)
        flat = x.reshape(-1, *x.shape[2:])[: sum(rows)]
        self._note("pack_padded_sequence", x, flat)
        return flat.clone(), sizes

    def _unpack(
        self, data: Tensor, batch_sizes: Tensor, batch_first: bool, padding_value: float, total_length: int
    ) -> tuple[Tensor, Tensor]:
        """The reverse."""
        times = max(total_length, batch_sizes.numel())
        rows = int(batch_sizes[0])
        lengths = (batch_sizes.unsqueeze(1) > torch.arange(rows).unsqueeze(0)).sum(0)
        missing = times * rows - data.shape[0]
        out = torch.cat([data, data.new_zeros((missing, *data.shape[1:]))])
        shape = (rows, times) if batch_first else (times, rows)
        return out.reshape(*shape, *data.shape[1:]), lengths

    def _note(self, name: str, source: Tensor, out: Tensor) -> None:
        cost = simple("copy")((), [], [])._replace(dims=(out.numel(),), reads=[touched(out)])
        self._recorder.record(name, cost, source.dtype)


def _is_accelerator(device: Any) -> bool:
    """Whether a device is not this CPU; a bare number is an accelerator's."""
    if isinstance(device, bool):
        return False
    return isinstance(device, int) or str(device).partition(":")[0] in ("cuda", "xpu", "mps", "npu", "hip")


def _float(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in _HALF else value


class _Autocast(torch.amp.autocast_mode.autocast):
    """Autocast of an accelerator, on the CPU's side."""

    def __init__(self, device_type: Any = "cuda", dtype: Any = None, enabled: bool = True, **rest: Any) -> None:
        if isinstance(device_type, bool):  # torch.cuda.amp.autocast(enabled)
            device_type, enabled = "cuda", device_type
        if _is_accelerator(device_type):
            dtype = torch.float16 if dtype is None else dtype
        super().__init__("cpu", dtype=dtype, enabled=enabled, **rest)


class _Scaler(torch.amp.GradScaler):
    """The loss scaler of an accelerator, on the CPU's side."""

    def __init__(self, device: str = "cuda", *args: Any, **rest: Any) -> None:
        if not isinstance(device, str):  # torch.cuda.amp.GradScaler(init_scale)
            args = (device, *args)
        super().__init__("cpu", *args, **rest)


def _apply(self: torch.nn.Module, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> torch.nn.Module:
    """``Module._apply`` that sets data: fake parameters have weak references and cannot be swapped."""
    for child in self.children() if recurse else ():
        child._apply(fn)
    with torch.no_grad():
        for parameter in self._parameters.values():
            if parameter is not None:
                parameter.data = fn(parameter.data)
                if parameter.grad is not None:
                    parameter.grad = fn(parameter.grad)
    for name, buffer in self._buffers.items():
        if buffer is not None:
            self._buffers[name] = fn(buffer)
    return self


@contextlib.contextmanager
def redirected(recorder: Recorder, redirect: Redirect) -> Generator[None]:
    """Runs the block with both modes on, and torch's names for what modes do not see replaced."""
    changes: list[tuple[Any, str, Any]] = [
        (functional, "scaled_dot_product_attention", _sdpa_of(redirect)),
        (torch, "autocast", _Autocast),
        (torch.amp, "autocast", _Autocast),
        (torch.cuda.amp, "autocast", _Autocast),
        (torch.amp, "GradScaler", _Scaler),
        (torch.cuda.amp, "GradScaler", _Scaler),
        (torch.nn.Module, "_apply", _apply),
        (torch.nn.Module, "cuda", lambda self, *_: self),
        (torch, "compile", lambda model=None, **_: model if model is not None else (lambda inner: inner)),
        (torch.autograd, "_engine_run_backward", _backward_of(recorder)),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in changes]
    for owner, name, value in changes:
        setattr(owner, name, value)
    try:
        with recorder, redirect:
            yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def _sdpa_of(redirect: Redirect) -> Callable[..., Tensor]:
    def scaled_dot_product_attention(*args: Any, **kwargs: Any) -> Tensor:
        return redirect.attention(*args, **kwargs)

    return scaled_dot_product_attention


def _backward_of(recorder: Recorder) -> Callable[..., Any]:
    original: Any = torch.autograd._engine_run_backward

    def run(*args: Any, **kwargs: Any) -> Any:
        before, recorder.phase = recorder.phase, "backward"
        if recorder.recording:
            recorder.buffers.mark()
        try:
            return original(*args, **kwargs)
        finally:
            recorder.phase = before

    return run

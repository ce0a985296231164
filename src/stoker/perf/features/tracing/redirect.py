# pyright: reportPrivateUsage=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnnecessaryIsInstance=false
"""Torch functions that are changed before they reach dispatch: devices, and kernels that this CPU lacks.

A CPU build of torch aborts the process when a cuda tensor, fake or not, reaches its autograd, so no such tensor is ever
made: what the program puts on an accelerator stays on the CPU's side.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Generator
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor
from torch.overrides import TorchFunctionMode

from stoker.core.patching import Patches
from stoker.perf.features.operators.costs import simple, touched
from stoker.perf.features.torch_private import (
    APPLY,
    RUN_BACKWARD,
    FakeTensor,
    apply_to,
    pack_padded,
    pad_packed,
    run_backward,
    without_modes,
)
from stoker.perf.features.tracing.recorder import DispatchRecorder
from stoker.perf.features.tracing.stand_ins import StandIns

_HALF = (torch.float16, torch.bfloat16)
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


_SET_DATA: Any = getattr(Tensor.data, "__set__")  # noqa: B009
"""What torch calls for ``tensor.data = other``."""
_SOUND = {"isfinite": True, "isnan": False, "isinf": False, "isposinf": False, "isneginf": False}


def _is_sound(name: str) -> Callable[..., Tensor]:
    """Treats uncomputed values as finite, since programs stop at others."""
    original, answer = getattr(torch, name), _SOUND[name]
    return lambda x: torch.full(x.shape, answer) if isinstance(x, FakeTensor) else original(x)


class Redirect(TorchFunctionMode):
    """Answers for an accelerator of kind ``target`` with tensors on the CPU.

    Args:
        recorder: keeps the calls of fused kernels.
        target: ``cuda`` or ``cpu``.
    """

    def __init__(self, recorder: DispatchRecorder, target: str) -> None:
        super().__init__()
        self._recorder = recorder
        self.stand_ins: StandIns | None = None
        self.applying = False
        """Whether a module's own tensors are being moved, which are not input."""
        self.has_moved = False
        """Whether a module was moved to the accelerator, and its recurrent layers with it."""
        self.moved_bytes = 0
        """Bytes copied to the accelerator, weights aside."""
        self.on_assign: Callable[[Tensor], None] | None = None
        """Called with a tensor that the program has given other data."""
        self._handlers: dict[Any, Callable[..., Any]] = {
            Tensor.cuda: self._moved,
            Tensor.pin_memory: lambda x, *_, **__: x,
            Tensor.to: self._to,
            _SET_DATA: self._assign,
            Tensor.__format__: lambda x, form: Tensor.__format__(x, form) if x.dim() else format(x.item(), form),
            Tensor.numpy: self._array,
            Tensor.__array__: lambda x, dtype=None: self._array(x).astype(dtype, copy=False),
            **{getattr(owner, name): _is_sound(name) for owner in (torch, Tensor) for name in _SOUND},
            pack_padded: self._pack,
            pad_packed: self._unpack,
        }
        if target == "cuda":
            self.stand_ins = StandIns(recorder)
            self._handlers |= self.stand_ins.handlers

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Makes one call, or its replacement."""
        kwargs = kwargs or {}
        if kwargs.get("device") is not None and _is_accelerator(kwargs["device"]):
            if func is Tensor.to:
                self._moved(args[0])
            kwargs = {**kwargs, "device": "cpu"}
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        handler = self._handlers.get(func)
        if handler is not None:
            return handler(*args, **kwargs)
        if self.stand_ins and torch.is_autocast_enabled("cpu") and func in _FP32_FUNCTIONS:
            if func is functional.cross_entropy and args and args[0].dtype in _HALF:
                return _half_cross_entropy(*args, **kwargs)
            args = tuple(_float(arg) for arg in args)
        return func(*args, **kwargs)

    def _moved(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
        if not self.applying:
            self.moved_bytes += x.numel() * x.element_size()
        return x

    def _to(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        devices = [isinstance(arg, (int, str, torch.device)) and _is_accelerator(arg) for arg in args]
        if any(devices):
            self._moved(x)
            self.has_moved |= self.applying
        args = tuple("cpu" if device else arg for arg, device in zip(args, devices, strict=True))
        return Tensor.to(x, *args, **kwargs)

    def _assign(self, x: Tensor, data: Tensor) -> None:
        x.data = data
        if self.on_assign is not None and not self.applying:
            self.on_assign(x)

    def _array(self, x: Tensor, *, force: bool = False) -> Any:
        """The values; uncomputed ones are all equal."""
        if not isinstance(x, FakeTensor):
            return x.numpy(force=force)
        value = self._recorder.hints.scalar(x.dtype)
        with without_modes():
            return torch.full(x.shape, value, dtype=x.dtype).numpy()

    def _pack(self, x: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
        """Rows of known lengths, packed by time; and how many rows are left at each time."""
        rows = lengths.tolist()
        time = torch.arange(max(rows))
        sizes = (lengths.unsqueeze(0) > time.unsqueeze(1)).sum(1)
        flat = x.reshape(-1, *x.shape[2:])[: sum(rows)]
        self._note("pack_padded_sequence", x, flat)
        return flat.clone(), sizes

    def _unpack(
        self, data: Tensor, batch_sizes: Tensor, batch_first: bool, padding_value: float, total_length: int
    ) -> tuple[Tensor, Tensor]:
        """The reverse of :meth:`_pack`."""
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


def _half_cross_entropy(
    scores: Tensor, target: Tensor, weight: Any = None, size_average: Any = None, ignore_index: int = -100,
    reduce: Any = None, reduction: str = "mean", label_smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    """As CUDA's autocast has it: logarithms in the scores' own precision, the loss of them in float32.

    The function names its precision to ``log_softmax``, which autocast then leaves alone
    (aten/src/ATen/native/LossNLL.cpp).
    """
    if label_smoothing or target.is_floating_point() or size_average is not None or reduce is not None:
        return functional.cross_entropy(
            scores.float(), target, weight, size_average, ignore_index, reduce, reduction, label_smoothing
        )
    logarithms = torch.log_softmax(scores, min(1, scores.dim() - 1))
    return functional.nll_loss(logarithms.float(), target, weight, ignore_index=ignore_index, reduction=reduction)


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


def _apply_of(redirect: Redirect) -> Callable[..., torch.nn.Module]:
    """``Module._apply`` that sets data: fake parameters have weak references and cannot be swapped."""

    def apply(self: torch.nn.Module, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> torch.nn.Module:
        for child in self.children() if recurse else ():
            apply_to(child, fn)
        before, redirect.applying = redirect.applying, True
        with torch.no_grad():
            for parameter in self._parameters.values():
                if parameter is not None:
                    moved = fn(parameter)
                    if moved is not parameter:
                        parameter.data = moved.detach()
                    if parameter.grad is not None:
                        parameter.grad = fn(parameter.grad)
        for name, buffer in self._buffers.items():
            if buffer is not None:
                self._buffers[name] = fn(buffer)
        redirect.applying = before
        return self

    return apply


def _cuda_of(redirect: Redirect) -> Callable[..., torch.nn.Module]:
    """``Module.cuda``, after which weights are where they were but for those of recurrent layers."""

    def cuda(self: torch.nn.Module, *_: Any) -> torch.nn.Module:
        redirect.has_moved = True
        for module in self.modules():
            if isinstance(module, torch.nn.RNNBase):
                module.flatten_parameters()
        return self

    return cuda


def _flatten_of(redirect: Redirect) -> Callable[[torch.nn.RNNBase], None]:
    """``RNNBase.flatten_parameters`` as on CUDA: cuDNN has all weights of a layer in one piece of memory.

    That is allocated next to the weights, and these are freed once they are copied (torch/nn/modules/rnn.py and
    ``_cudnn_rnn_flatten_weight`` in aten/src/ATen/native/cudnn/RNN.cpp).
    """

    def flatten(self: torch.nn.RNNBase) -> None:
        weights = [weight for layer in self.all_weights for weight in layer]
        alike = {weight.dtype for weight in weights}
        if not redirect.has_moved or len(alike) != 1 or not all(isinstance(each, FakeTensor) for each in weights):
            return
        with torch.no_grad():
            flat = weights[0].new_empty(sum(weight.numel() for weight in weights))
            parts = flat.split([weight.numel() for weight in weights])
            for weight, part in zip(weights, parts, strict=True):
                weight.data = part.view(weight.shape)

    return flatten


@contextlib.contextmanager
def redirected(recorder: DispatchRecorder, redirect: Redirect) -> Generator[None]:
    """Runs the block under both modes, with replacements for torch's functions that modes do not see."""
    changes: list[tuple[Any, str, Any]] = [
        (torch, "autocast", _Autocast),
        (torch.amp, "autocast", _Autocast),
        (torch.cuda.amp, "autocast", _Autocast),
        (torch.amp, "GradScaler", _Scaler),
        (torch.cuda.amp, "GradScaler", _Scaler),
        (torch.nn.Module, APPLY, _apply_of(redirect)),
        (torch.nn.Module, "cuda", _cuda_of(redirect)),
        (torch, "compile", _compile_of(recorder)),
        (torch.autograd, RUN_BACKWARD, _backward_of(recorder)),
    ]
    if redirect.stand_ins:
        changes.append((torch.nn.RNNBase, "flatten_parameters", _flatten_of(redirect)))
        changes += [(functional, name, value) for name, value in redirect.stand_ins.functional.items()]
    with Patches("a program is traced: devices") as patches:
        for owner, name, value in changes:
            patches.set(owner, name, value)
        with recorder, redirect:
            yield


def _compile_of(recorder: DispatchRecorder) -> Callable[..., Any]:
    """Returns the function uncompiled, and notes that it is to be compiled."""

    def compiled(model: Any = None, *, disable: bool = False, **_: Any) -> Any:
        if model is None:
            return functools.partial(compiled, disable=disable)
        recorder.compiled |= not disable
        return model

    return compiled


def _backward_of(recorder: DispatchRecorder) -> Callable[..., Any]:
    original = run_backward()

    def run(*args: Any, **kwargs: Any) -> Any:
        before, recorder.phase = recorder.phase, "backward"
        if recorder.recording:
            recorder.buffers.mark()
        try:
            return original(*args, **kwargs)
        finally:
            recorder.phase = before

    return run

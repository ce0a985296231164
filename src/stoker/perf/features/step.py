# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
"""Characterises one training step of a module, or of a function that makes a whole step, without computing it."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode

from stoker.perf.features.lifetimes import MemoryTimeline
from stoker.perf.features.records import StepFeatures, check_hints
from stoker.perf.features.torch_private import (
    FakeTensor,
    before_compiling,
    is_compiled_in_place,
    tree_leaves,
    tree_map_only,
    undo_compiling_in_place,
)
from stoker.perf.features.tracing.recorder import DispatchRecorder
from stoker.perf.features.tracing.redirect import Redirect, redirected
from stoker.perf.features.tracing.summing import features_of
from stoker.perf.features.tracing.timelines import timeline_of
from stoker.perf.features.tracing.watch import StepFollower

Target = Literal["cuda", "cpu"]


def characterise(
    module_or_step: nn.Module | Callable[..., Any],
    inputs: Any,
    *,
    optimizer: Optimizer | Callable[[Any], Optimizer] | None = None,
    loss: Callable[[Any], Tensor] | None = None,
    autocast: torch.dtype | None = None,
    target: Target = "cuda",
    batch_size: int | None = None,
    hints: Mapping[str, float] | None = None,
    name: str = "",
) -> StepFeatures:
    """What one training step computes, touches and keeps; nothing is computed, and no weight changes.

    Args:
        module_or_step: a module (its weights may be on the meta device), or a function ``step(*inputs)`` that runs
            forward, backward and optimizer itself.
        inputs: arguments of the module: a tensor, a tuple of arguments, or a dict of named ones. Values of whole
            numbers and masks count where sizes follow from them.
        optimizer: an optimizer of the module, or what makes one from its parameters, such as ``torch.optim.AdamW``.
        loss: what makes a scalar from the module's output; by default its sum, or its own ``loss``.
        autocast: precision of automatic mixed precision, ``torch.bfloat16`` or ``torch.float16``.
        target: whose kernels are counted: ``cuda`` (also for a machine without one) or ``cpu``.
        batch_size: samples of a step; by default the first size of the first tensor of ``inputs``.
        hints: by line (``train.py:31``) or operation (``nonzero``, ``mask``): elements, or a fraction of them.
        name: for reports; by default the module's class.

    Raises:
        TracingError: a size depends on values that are not computed, and no hint gives it.
    """
    return trace(
        module_or_step, inputs, optimizer=optimizer, loss=loss, autocast=autocast, target=target,
        batch_size=batch_size, hints=hints, name=name, sums_in_place=False,
    )[0]  # fmt: skip


def trace(
    module_or_step: nn.Module | Callable[..., Any], inputs: Any, *,
    optimizer: Optimizer | Callable[[Any], Optimizer] | None = None, loss: Callable[[Any], Tensor] | None = None,
    autocast: torch.dtype | None = None, target: Target = "cuda", batch_size: int | None = None,
    hints: Mapping[str, float] | None = None, name: str = "", sums_in_place: bool = True,
) -> tuple[StepFeatures, MemoryTimeline]:  # fmt: skip
    """The features of one training step, and its memory; arguments and errors as those of :func:`characterise`.

    Args:
        module_or_step: as there, and so are all but the last.
        inputs: as there.
        optimizer: as there.
        loss: as there.
        autocast: as there.
        target: as there.
        batch_size: as there.
        hints: as there.
        name: as there.
        sums_in_place: whether gradients are summed as autograd's engine does it, which memory depends on. The shipped
            tables, by which steps are predicted, count chains of kernels without it.
    """
    if target not in ("cuda", "cpu"):
        raise ValueError(f"`target` must be 'cuda' or 'cpu', got {target!r}")
    recorder = DispatchRecorder(check_hints(hints or {}))
    recorder.sums_in_place = sums_in_place
    module_or_step, recorder.compiled = uncompiled(module_or_step)
    redirect = Redirect(recorder, target)
    if isinstance(module_or_step, nn.Module):
        run = _Step(recorder, module_or_step, optimizer, loss, autocast, target)
    elif callable(module_or_step):
        run = module_or_step
    else:
        raise TypeError(f"`module_or_step` must be a module or a function, got {type(module_or_step).__name__}")
    with redirected(recorder, redirect):
        recorder.spares_weights = not isinstance(run, _Step)
        known = tree_map_only(Tensor, lambda tensor: _input(recorder, tensor), inputs)
        tensors = [leaf for leaf in tree_leaves(known) if isinstance(leaf, Tensor)]
        if isinstance(run, _Step):
            run.prepare()
            model, optimizers = run.module, [run.optimizer] if run.optimizer else []
        else:
            model, optimizers = None, []
        for tensor in tensors:
            recorder.buffers.give_role(tensor, "input")
        watch = StepFollower(recorder, model)
        with watch.recording():
            _call(run, known)
        found = features_of(
            recorder, watch, optimizers or list(watch.optimizers.values()), target=target, inputs=tensors,
            batch_size=batch_size,
            name=name or (type(model).__name__ if model else getattr(module_or_step, "__name__", "step")),
        )  # fmt: skip
        timeline = timeline_of(recorder, watch, found)
    watch.clear()
    return found, timeline


def uncompiled(found: Any) -> tuple[Any, bool]:
    """A module or function before ``torch.compile``, and whether it was compiled."""
    inner = before_compiling(found)
    if inner is not None:
        return inner, True
    in_place = isinstance(found, nn.Module) and any(map(is_compiled_in_place, found.modules()))
    return found, in_place


class _Step:
    """Forward, backward and optimizer of a module's fake twin."""

    def __init__(
        self, recorder: DispatchRecorder, module: nn.Module, optimizer: Any, loss: Any, autocast: Any, target: str
    ) -> None:
        self._recorder, self._given, self._make, self._loss = recorder, module, optimizer, loss
        self._autocast, self._target = autocast, target
        self.module = module
        self.optimizer: Optimizer | None = None

    def prepare(self) -> None:
        """Makes the twin, and an optimizer that has its state already, as in every step but the first."""
        with _Faking(self._recorder):
            given = self._make if isinstance(self._make, Optimizer) else None
            self.module, self.optimizer = copy.deepcopy((self._given, given))
            for each in self.module.modules():
                undo_compiling_in_place(each)
            if self._make is not None and not isinstance(self._make, Optimizer):
                trainable = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
                self.optimizer = self._make(trainable)
        if self.optimizer is not None:
            prepare_optimizer(self.optimizer, self._target)
            for group in self.optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = torch.empty_like(parameter)
            self.optimizer.step()
            self.optimizer.zero_grad()

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """One step."""
        casting = torch.autocast("cuda", dtype=self._autocast) if self._autocast else contextlib.nullcontext()
        with casting:
            out = self.module(*args, **kwargs)
            value = self._loss(out) if self._loss else _scalar(out)
        del out
        value.backward()
        del value
        if self.optimizer is not None:
            self.optimizer.step()


def _scalar(out: Any) -> Tensor:
    """The output's own loss, or a sum of its floating tensors."""
    own = out.get("loss") if isinstance(out, dict) else getattr(out, "loss", None)
    if isinstance(own, Tensor):
        return own
    found = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor) and leaf.requires_grad]
    if not found:
        raise TypeError("`module` must give a tensor that wants a gradient; give `loss`, which makes one of its output")
    total = found[0].sum()
    for tensor in found[1:]:
        total = total + tensor.sum()
    return total


def prepare_optimizer(optimizer: Optimizer, target: str) -> None:
    """Selects the implementation that torch uses by default on the target: all tensors at once if it has that."""
    for group in optimizer.param_groups:
        if target == "cuda" and group.get("foreach", 0) is None and not group.get("fused"):
            group["foreach"] = True


class _Faking(TorchFunctionMode):
    """Makes copies with fake tensors in place of the original's."""

    def __init__(self, recorder: DispatchRecorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Changes no function but copying."""
        if func is Tensor.clone:  # parameters copy themselves with it
            return fake_of(self._recorder, args[0].detach())
        if func is Tensor.__deepcopy__:
            x, memo = args
            if id(x) not in memo:
                memo[id(x)] = fake_of(self._recorder, x)
            return memo[id(x)]
        return func(*args, **(kwargs or {}))


def fake_of(recorder: DispatchRecorder, x: Tensor) -> Tensor:
    """A fake tensor like ``x``, on the CPU wherever ``x`` is."""
    with recorder.fake:
        made = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cpu")
    if isinstance(x, nn.Parameter):
        return nn.Parameter(made, requires_grad=x.requires_grad)
    return made.requires_grad_(x.requires_grad)


def _input(recorder: DispatchRecorder, x: Tensor) -> Tensor:
    """Whole numbers keep their values, since sizes may follow from them."""
    known = x.device.type == "cpu" and not isinstance(x, FakeTensor) and not x.dtype.is_floating_point
    return x if known else fake_of(recorder, x)


def _call(run: Callable[..., Any], inputs: Any) -> None:
    if isinstance(inputs, Mapping):
        run(**inputs)
    elif isinstance(inputs, (tuple, list)):
        run(*inputs)
    else:
        run(inputs)

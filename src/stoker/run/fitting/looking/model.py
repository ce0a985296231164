"""Looks at a program's model while it is traced: which forward passes can be repeated, and who reads gradients.

A forward pass that writes attributes, replaces buffers or changes its input would do so twice, so it is not repeated.
What averages over batches write into their buffers is known: the repetition spares buffers.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from stoker.core.patching import Patches
from stoker.feed.purity.objects import is_library
from stoker.perf.features.tracing.distributed import paths, wrapped
from stoker.perf.features.tracing.places import frames
from stoker.perf.memory.choice.fitting import UNCALLED
from stoker.perf.memory.choice.options import BY_HAND
from stoker.records.fitting import TracedModel
from stoker.run.fitting.looking.calls import CallLook
from stoker.run.fitting.looking.changes import CHANGES_INPUT, Reached, change, reached_by
from stoker.run.fitting.looking.gradients import BY_WEIGHT, asked_for, not_followed
from stoker.train.fitting.chunking import why_not_cut
from stoker.train.fitting.recomputing import why_not, why_not_changed

_NOT_REPLICATED = "its model is not what DistributedDataParallel holds"


@dataclass(frozen=True, slots=True)
class _Running:
    """A forward pass that has begun."""

    module: nn.Module
    before: Reached | None
    named: dict[str, Any]
    handled: BaseException | None
    """What the program was handling when it began."""


class ModelLook:
    """What is seen of the modules and optimizers of a process, from :meth:`install` to :meth:`remove`."""

    def __init__(self) -> None:
        self._handles: list[Any] = []
        self._running: list[_Running] = []
        self._named: dict[str, Any] = {}
        """Named arguments of the module that is called, which torch does not tell before its forward pass."""
        self._changed: dict[int, str] = {}
        self._modules: list[nn.Module] = []
        """Those of which something is known: an id is unique while its object lives."""
        self._called: set[int] = set()
        self.first: nn.Module | None = None
        """The first module that was called."""
        self._gradients = ""
        self._lines: dict[str, str] = {}
        self._made: weakref.WeakKeyDictionary[DataLoader[Any], str] = weakref.WeakKeyDictionary()
        """Lines that make loaders."""
        self._call = CallLook()
        self._patches = Patches("lines of a program that is traced")

    def install(self) -> None:
        """Looks from now on."""
        registry: Any = importlib.import_module("torch.nn.modules.module")
        steps: Any = importlib.import_module("torch.optim.optimizer")
        self._handles = [
            registry.register_module_forward_pre_hook(self._enter),
            registry.register_module_forward_hook(self._leave, always_call=True),
            steps.register_optimizer_step_pre_hook(self._step),
        ]
        self._patches.set(nn.Module, "__call__", self._calling(nn.Module.__call__))
        zeroing = functools.partial(self._noting, name="zero_grad")
        for owner in (Optimizer, nn.Module):
            self._patches.set(owner, "zero_grad", zeroing(owner.zero_grad))
        loaders: Any = DataLoader
        self._patches.set(loaders, "__init__", self._making(loaders.__init__))
        self._patches.set(loaders, "__iter__", self._iterating(loaders.__iter__))
        self._call.install(self._patches)

    def _calling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            self._named = kwargs
            return original(module, *args, **kwargs)

        return call

    def _noting(self, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(original)
        def noting(*args: Any, **kwargs: Any) -> Any:
            self._lines.setdefault(name, line_of_program())
            return original(*args, **kwargs)

        return noting

    def _making(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def made(loader: DataLoader[Any], *args: Any, **kwargs: Any) -> None:
            self._made.setdefault(loader, line_of_program())
            original(loader, *args, **kwargs)

        return made

    def _iterating(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def iterating(loader: DataLoader[Any]) -> Any:
            if "step" not in self._lines and loader in self._made:
                self._lines["loader"] = self._made[loader]
            return original(loader)

        return iterating

    def remove(self) -> None:
        """Ends it."""
        self._patches.restore()
        for handle in self._handles:
            handle.remove()

    def _enter(self, module: nn.Module, args: Any) -> None:
        named, self._named = self._named, {}
        self.first = self.first or module
        if not self._running and "model" not in self._lines and torch.is_grad_enabled():
            self._lines["model"] = line_of_program()
        if id(module) not in self._called:
            self._called.add(id(module))
            self._modules.append(module)
        # Without gradients nothing is repeated.
        before = reached_by(module, args, named) if torch.is_grad_enabled() else None
        self._running.append(_Running(module, before, named, sys.exc_info()[1]))

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        """Looks again, but not where the forward pass has raised."""
        while self._running:
            begun = self._running.pop()
            if begun.module is module:
                if begun.before is not None and sys.exc_info()[1] is begun.handled:
                    reason = change(begun.before, reached_by(module, args, begun.named))
                    if reason:
                        self._changed.setdefault(id(module), reason)
                return

    def _step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # The first argument is the optimizer itself; libraries hand on a closure that is None.
        if any(value is not None for value in (*args[1:], *kwargs.values())):
            self._gradients = "a closure computes them"
        self._gradients = self._gradients or not_followed(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
        self._lines.setdefault("step", line_of_program())

    def found(
        self, root: nn.Module | None, optimizers: Iterable[Optimizer], *, compiled: bool = False,
        gradients_read: str = "", passes_by_hand: int = 0,
    ) -> TracedModel:  # fmt: skip
        """What was seen of a model.

        Args:
            root: the model, or what was called in its place; None for none.
            optimizers: that stepped.
            compiled: whether torch compiles it.
            gradients_read: who reads gradients, where that is known otherwise.
            passes_by_hand: backward passes of a step of a program that updates its weights itself; 0 for others.
        """
        if root is None:
            return TracedModel()
        stepped = list(optimizers)
        units, not_sharded = _shares(root, stepped)
        by_hand = BY_HAND if passes_by_hand else ""
        not_sharded = not_sharded or by_hand
        not_staged = _stages(root, stepped) or self._call.reason or by_hand
        root = dict(paths(root))[""]  # without wrappers of data parallelism, which a trace may have and a run not
        kept_as_is = self._kept_as_is(root)
        return TracedModel(
            model=type(root).__qualname__,
            num_parameters=sum(parameter.numel() for parameter in root.parameters()),
            kept_as_is=kept_as_is,
            class_stays=tuple(path for path, module in paths(root) if why_not_changed(module)),
            gradients_read=gradients_read or self._gradients or asked_for(),
            not_cut=why_not_cut(root) or kept_as_is.get("", ""),
            units=units,
            not_sharded=not_sharded,
            call=self._call.call,
            not_staged=not_staged,
            compiled=compiled,
            optimizers=tuple(sorted(map(_name_of, stepped))),
            passes_by_hand=passes_by_hand,
            lines={name: line for name, line in self._lines.items() if line},
        )

    def _kept_as_is(self, root: nn.Module) -> dict[str, str]:
        found: dict[str, str] = {}
        for path, module in paths(root):
            reason = why_not(module) if id(module) in self._called else UNCALLED
            if not reason:
                inside = ((part, self._changed.get(id(part))) for part in module.modules())
                matter = ((part, text) for part, text in inside if text and (part is module or text != CHANGES_INPUT))
                changed = next(matter, None)
                if changed is not None:
                    reason = changed[1] if changed[0] is module else f"of a {type(changed[0]).__name__}: {changed[1]}"
            if reason:
                found[path] = reason
        return found


def line_of_program() -> str:
    """The innermost line of the program's own files that led here, as ``train.py:31``; empty without one."""
    for frame in frames():
        is_ours = str(frame.f_globals.get("__name__", "")).partition(".")[0] == "stoker"
        if not is_ours and not is_library(frame.f_code.co_filename):
            return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
    return ""


def _shares(root: nn.Module, optimizers: Iterable[Optimizer]) -> tuple[tuple[str, ...], str]:
    """Units of a replicated model whose weights ranks can gather together, and why they cannot keep shares of them."""
    module = wrapped(root)
    if module is None:
        return (), _NOT_REPLICATED
    # Imported here: it takes torch a second, and few programs have ranks.
    from stoker.train.sharding.checking import blocks_of, check_weights
    from stoker.train.state.optimizers import is_by_element

    units = blocks_of(module)
    for optimizer in optimizers:
        if not is_by_element(optimizer):
            return tuple(units), f"{_name_of(optimizer)} is not known to work by element"
    try:
        check_weights(module, units)
    except ValueError as error:
        return tuple(units), str(error)
    return tuple(units), ""


def _stages(root: nn.Module, optimizers: Iterable[Optimizer]) -> str:
    """Why layers of a replicated model cannot be in stages; empty if they can, as far as a trace tells."""
    module = wrapped(root)
    if module is None:
        return _NOT_REPLICATED
    from stoker.train.staging.checking import check_module  # as above

    try:
        check_module(module, optimizers, ())
    except ValueError as error:
        return str(error)
    # Weights of other stages have no gradient here.
    return asked_for(BY_WEIGHT)


def _name_of(optimizer: Optimizer) -> str:
    """The class, with its module where it is not torch's."""
    kind = type(optimizer)
    return kind.__name__ if kind.__module__.startswith("torch.optim.") else f"{kind.__module__}.{kind.__qualname__}"

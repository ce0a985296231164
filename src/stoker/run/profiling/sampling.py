"""Samples a few consecutive steps: with torch's profiler, and ranges around modules."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import nn
from torch.nn.modules import module as registry
from torch.profiler import ProfilerActivity, profile, record_function

from stoker.perf.diagnosis.timeline import MODULE, STEP
from stoker.run.profiling.torch_private import has_compiled
from stoker.run.profiling.trace import read_trace


class Sampler:
    """A window of sampled steps."""

    def __init__(self) -> None:
        self.active = False
        self.precision = ""
        """Precision of products under automatic mixed precision, as observed; empty where there was none."""
        self.failure = ""
        """Why there is no trace."""
        self._profile: Any = None
        self._ranges = ModuleRanges(self)

    def start(self) -> None:
        """Starts to sample steps; a failure does not affect the program."""
        device = torch.cuda.is_available() and torch.cuda.is_initialized()
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device else [])]
        try:
            if device:
                torch.cuda.synchronize()
            self._profile = profile(activities=activities)
            self._profile.start()
        except Exception as error:  # another profiler is at work, or no permission to count
            self._profile = None
            self.failure = f"torch's profiler could not be started: {' '.join(str(error).split())}"
            return
        self.active = True
        if not has_compiled():
            # Compiled code is guarded by the hooks at its compilation: new hooks would cause a recompilation.
            self._ranges.install()

    def stop(self) -> None:
        """Ends it."""
        if not self.active:
            return
        self.active = False
        self._ranges.remove()
        try:
            if torch.cuda.is_available() and torch.cuda.is_initialized():
                torch.cuda.synchronize()
            self._profile.stop()
        except Exception as error:
            self._profile = None
            self.failure = f"torch's profiler could not be stopped: {' '.join(str(error).split())}"

    def drop(self) -> None:
        """Ends it and drops its results."""
        self.stop()
        self._profile = None

    def read(self) -> Any:
        """The trace, a :class:`~stoker.perf.diagnosis.sampled.ProfilerTrace`; None without one."""
        results = getattr(getattr(self._profile, "profiler", None), "kineto_results", None)
        return read_trace(results.events()) if results is not None else None


def mark_step() -> None:
    """Marks the end of a step in the trace."""
    with record_function(STEP):
        pass


class ModuleRanges:
    """Ranges around the forward pass of every module, named by the module's path."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._handles: list[Any] = []
        self._open: list[tuple[nn.Module, Any]] = []
        self._paths: dict[int, str] = {}
        self._roots: list[nn.Module] = []

    def install(self) -> None:
        """Starts."""
        self._handles = [
            registry.register_module_forward_pre_hook(self._enter),
            registry.register_module_forward_hook(self._leave, always_call=True),
        ]

    def remove(self) -> None:
        """Ends it; the paths are forgotten, so that no module is kept alive."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        while self._open:
            self._open.pop()[1].__exit__(None, None, None)
        self._roots.clear()
        self._paths.clear()

    def _enter(self, module: nn.Module, _: Any) -> None:
        if not self._open:
            self._know(module)
        if not self._sampler.precision:
            self._sampler.precision = _autocast()
        opened = record_function(MODULE + self._paths.get(id(module), type(module).__name__))
        opened.__enter__()
        self._open.append((module, opened))

    def _leave(self, module: nn.Module, _: Any, __: Any) -> None:
        # Only the innermost module can end here: one whose forward pass was cut short by an exception that the program
        # caught was ended by ``always_call``.
        if self._open and self._open[-1][0] is module:
            self._open.pop()[1].__exit__(None, None, None)

    def _know(self, root: nn.Module) -> None:
        """Paths of a model's modules, without those of wrappers around it."""
        if any(root is known for known in self._roots) or id(root) in self._paths:
            return
        self._roots.append(root)
        inner = root
        while isinstance(inner, _WRAPPERS) and isinstance(within := getattr(inner, "module", None), nn.Module):
            inner = within
        with contextlib.suppress(RuntimeError):
            for path, module in cast("Iterator[tuple[str, nn.Module]]", inner.named_modules()):
                self._paths.setdefault(id(module), path)
        self._paths.setdefault(id(root), "")


_WRAPPERS: tuple[type[nn.Module], ...] = (nn.parallel.DistributedDataParallel, nn.DataParallel)


def _autocast() -> str:
    for device in ("cuda", "cpu"):
        if torch.is_autocast_enabled(device):
            return {torch.bfloat16: "bf16", torch.float16: "fp16"}.get(torch.get_autocast_dtype(device), "")
    return ""

# pyright: reportUnknownMemberType=false
"""Counts the peak of a program's first steps while it runs, without a change of what it computes."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from stoker.core.patching import Patches
from stoker.records.fitting import CountedPeak
from stoker.train.fitting.live_bytes import LiveBytes
from stoker.train.torch_private import RUN_BACKWARD, top_mode


class StepCount:
    """Bytes of tensors in the first steps of an optimizer.

    Args:
        steps: that are counted.
        waits: whether the program is inside a loader, whose tensors lie in host memory.
        done: called when they are over.
        reserved: most bytes of a device since it was asked last, which count instead of tensors.
        passes_by_hand: backward passes of a step of a program that updates its weights itself, which no optimizer
            tells: a step ends with the next forward or backward pass after as many. 0 for others.
    """

    def __init__(
        self, steps: int, waits: Callable[[], bool], done: Callable[[], None],
        reserved: Callable[[], int] | None = None, passes_by_hand: int = 0,
    ) -> None:  # fmt: skip
        self._steps, self._waits, self._done, self._reserved = steps, waits, done, reserved
        self._is_over = False
        self._live: LiveBytes | None = None
        self._first: Optimizer | None = None
        self._hook: Any = None
        self.passes_by_hand = passes_by_hand
        self._passes = self._depth = 0
        self._patches = Patches("the count of a program's first steps")
        self.peaks: list[CountedPeak] = []

    def start(self) -> None:
        """Counts from now on."""
        if self.passes_by_hand:
            registry: Any = importlib.import_module("torch.nn.modules.module")
            self._hook = registry.register_module_forward_pre_hook(self._pass_begins)
            self._patches.set(torch.autograd, RUN_BACKWARD, self._backward(getattr(torch.autograd, RUN_BACKWARD)))
        else:
            steps: Any = importlib.import_module("torch.optim.optimizer")
            self._hook = steps.register_optimizer_step_post_hook(self._stepped)
        if self._reserved is None:
            self._live = LiveBytes(waits=self._waits)
            self._live.__enter__()

    def stop(self) -> None:
        """Ends it."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        self._patches.restore()
        self._leave()

    def _leave(self) -> None:
        """Leaves the count, unless the program has entered a mode of its own since: then with a later step."""
        if self._live is not None and top_mode() is self._live:
            self._live.__exit__(None, None, None)
            self._live = None

    def _stepped(self, optimizer: Optimizer, *_: Any) -> None:
        if self._is_over:
            self._leave()
            return
        self._first = self._first or optimizer
        if optimizer is self._first:
            self._end()

    def _backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            self._pass_begins()
            self._depth += 1
            try:
                return original(*args, **kwargs)
            finally:
                self._depth -= 1
                self._passes += not self._depth

        return backward

    def _pass_begins(self, *_: Any) -> None:
        if self._depth or self._passes < self.passes_by_hand:  # a repeated forward pass is part of a backward pass
            return
        self._passes = 0
        if self._is_over:
            self._leave()
        else:
            self._end()

    def _end(self) -> None:
        count = self._reserved() if self._reserved is not None else self._live.begin() if self._live else 0
        self.peaks.append(CountedPeak(len(self.peaks) + 1, count))
        if len(self.peaks) == self._steps:  # the hook stays: torch is going through its hooks now
            self._is_over = True
            self._leave()
            self._done()

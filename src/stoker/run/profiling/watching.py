# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false
# (replaces a method of torch's private iterators)
"""The marks that are always set: around ``next`` of torch's loaders and around optimizer steps. Microseconds a step."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from threading import get_ident
from time import perf_counter, thread_time
from typing import Any

from torch.autograd.profiler import record_function
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data.dataloader import _BaseDataLoaderIter

from stoker.perf.verdict.marks import Kind, Mark
from stoker.perf.verdict.profile import LoaderFacts
from stoker.perf.verdict.timeline import CLOSURE, NEXT, OPTIMIZER
from stoker.run.serving import call_site

ENOUGH_BATCHES = 40
"""Batches without an optimizer step after which batches count as steps; accumulation over more is rare."""

_stock_next = _BaseDataLoaderIter.__next__


class Watch:
    """Sets marks in this process; forks of it (data workers) go on unwatched.

    Args:
        on_step: called at each end of a step with its number, from 0, and whether optimizer steps count.
    """

    def __init__(self, on_step: Callable[[int, bool], None]) -> None:
        self.marks: list[Mark] = []
        self.by_optimizer = True
        self.optimizers: set[int] = set()
        self.device = "cpu"
        self.dtype = ""
        self.loaders: dict[int, tuple[int, LoaderFacts]] = {}
        """Batches and facts by loader's dataset."""
        self.sampling = False
        """Whether ranges are wanted in the trace."""
        self._on_step = on_step
        self._pid = os.getpid()
        self._primary = 0
        self._ends = 0
        self._asked = 0
        self._handles: list[Any] = []
        self._range: Any = None

    def install(self) -> None:
        """Sets marks from now on."""
        watch = self

        @functools.wraps(_stock_next)
        def watched_next(self: Any) -> Any:
            return watch.next(self)

        _BaseDataLoaderIter.__next__ = watched_next
        self._handles = [
            register_optimizer_step_pre_hook(self._stepping),
            register_optimizer_step_post_hook(self._stepped),
        ]

    def remove(self) -> None:
        """Ends it; torch is as it was."""
        _BaseDataLoaderIter.__next__ = _stock_next
        for handle in self._handles:
            handle.remove()
        self._handles = []

    # -- loaders -----------------------------------------------------------------------------------------------------

    def next(self, iterator: Any) -> Any:
        """A batch from torch's own iterator, between two marks."""
        if os.getpid() != self._pid:
            return _stock_next(iterator)
        thread = get_ident()
        if not self._primary or not self.by_optimizer:
            self._count_batch(thread)
        self.marks.append(Mark(Kind.ASKED, perf_counter(), thread, 0, thread_time()))
        try:
            if self.sampling:
                with record_function(NEXT):
                    batch = _stock_next(iterator)
            else:
                batch = _stock_next(iterator)
        finally:
            self.marks.append(Mark(Kind.DELIVERED, perf_counter(), thread, 0, thread_time()))
        known = self.loaders.get(id(iterator._dataset))
        if known is None:
            known = (0, self._facts(iterator, batch))
        self.loaders[id(iterator._dataset)] = (known[0] + 1, known[1])
        return batch

    def _count_batch(self, thread: int) -> None:
        """Where no optimizer steps, batches do."""
        self._asked += 1
        if self.by_optimizer and self._asked > ENOUGH_BATCHES:
            self.by_optimizer = False
        if not self.by_optimizer:
            self._on_step(self._asked - 1, False)

    def _facts(self, iterator: Any, batch: Any) -> LoaderFacts:
        return LoaderFacts(
            site=call_site(3),
            dataset=type(iterator._dataset).__name__,
            workers=int(getattr(iterator, "_num_workers", 0) or 0),
            batch_size=_samples_of(batch),
        )

    # -- optimizers --------------------------------------------------------------------------------------------------

    def _stepping(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if os.getpid() != self._pid:
            return None
        if not self._primary:
            self._primary = id(optimizer)
            self._look_at(optimizer)
        self.optimizers.add(id(optimizer))
        changed = None
        # Hooks get the optimizer among the arguments.
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if callable(closure):
            wrapped = self._between(closure, optimizer)
            changed = (
                ((args[0], wrapped, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "closure": wrapped})
            )
        if self.sampling:
            self._range = record_function(OPTIMIZER)
            self._range.__enter__()
        self.marks.append(Mark(Kind.STEPPING, perf_counter(), get_ident(), id(optimizer)))
        return changed

    def _between(self, closure: Callable[..., Any], optimizer: Optimizer) -> Callable[..., Any]:
        """What the optimizer calls to have the loss computed is the program's work, not the optimizer's."""

        @functools.wraps(closure)
        def between(*args: Any, **kwargs: Any) -> Any:
            try:
                if self.sampling:
                    with record_function(CLOSURE):
                        return closure(*args, **kwargs)
                return closure(*args, **kwargs)
            finally:
                self.marks.append(Mark(Kind.STEPPING, perf_counter(), get_ident(), id(optimizer)))

        return between

    def _stepped(self, optimizer: Optimizer, _: Any, __: Any) -> None:
        if os.getpid() != self._pid:
            return
        self.marks.append(Mark(Kind.STEPPED, perf_counter(), get_ident(), id(optimizer)))
        if self._range is not None:
            self._range.__exit__(None, None, None)
            self._range = None
        if id(optimizer) != self._primary:
            return
        self.by_optimizer = True
        self._ends += 1
        self._on_step(self._ends - 1, True)

    def _look_at(self, optimizer: Optimizer) -> None:
        """Where the weights are, and of which precision."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self.device = parameter.device.type
                self.dtype = str(parameter.dtype).removeprefix("torch.")
                return

    def main_loader(self) -> LoaderFacts | None:
        """The loader that delivered most batches."""
        if not self.loaders:
            return None
        return max(self.loaders.values(), key=lambda found: found[0])[1]


def _samples_of(batch: Any) -> int | None:
    """The first size of the first tensor; looks at most a few levels deep, and calls nothing of the program's."""
    torch: Any = sys.modules["torch"]
    if isinstance(batch, torch.Tensor):
        return int(batch.shape[0]) if batch.dim() else None
    if isinstance(batch, dict) or isinstance(getattr(batch, "data", None), dict):
        values = list((batch if isinstance(batch, dict) else batch.data).values())
    else:
        values = list(batch) if isinstance(batch, (list, tuple)) else []
    return next((size for value in values[:8] if (size := _samples_of(value)) is not None), None)

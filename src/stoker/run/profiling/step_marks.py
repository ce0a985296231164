"""The marks that are always set: around ``next`` of torch's loaders and around optimizer steps. Microseconds a step."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from threading import get_ident
from time import perf_counter, thread_time
from typing import Any, cast

from torch.autograd.profiler import record_function
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from stoker.core.forking import at_fork
from stoker.core.patching import Patches
from stoker.feed.torch_private import BaseIterator, dataset_of, num_workers_of
from stoker.perf.diagnosis.marks import Kind, Mark
from stoker.perf.diagnosis.timeline import CLOSURE, NEXT, OPTIMIZER
from stoker.records.profile import LoaderFacts
from stoker.run.loaders.serving import call_site

ENOUGH_BATCHES = 40
"""Batches without an optimizer step after which batches count as steps; accumulation over more is rare."""

_ASKED, _DELIVERED, _STEPPING, _STEPPED = (kind.value for kind in Kind)


@dataclass(slots=True)
class _Loader:
    facts: LoaderFacts
    batches: int = 0


class Watch:
    """Sets marks in this process; forks of it (data workers) go on unwatched.

    Args:
        on_step: called at each end of a step with its number, from 0, and whether optimizer steps count.
    """

    def __init__(self, on_step: Callable[[int, bool], None]) -> None:
        self._raw: list[tuple[int, float, int, int, float]] = []
        self.by_optimizer = True
        self.optimizers: set[int] = set()
        self.device = "cpu"
        self.dtype = ""
        self.loaders: dict[int, _Loader] = {}
        """By the identity of their datasets."""
        self.sampling = False
        """Whether ranges are wanted in the trace."""
        self._on_step = on_step
        self._forked = False
        self._primary = 0
        self._ends = 0
        self._asked = 0
        self._handles: list[Any] = []
        self._patches = Patches("steps are profiled")
        self._range: Any = None

    @property
    def marks(self) -> list[Mark]:
        """All marks so far, in the order in which they were set."""
        return [Mark(Kind(kind), t_s, thread, owner, cpu_s) for kind, t_s, thread, owner, cpu_s in self._raw]

    def install(self, *others: type[Any]) -> None:
        """Sets marks from now on.

        Args:
            others: iterators with a ``__next__`` of their own around torch's; the marks go around the whole of it.
        """
        kinds: tuple[type[Any], ...] = (BaseIterator, *others)
        stock = {kind: kind.__next__ for kind in kinds}
        for kind, real in stock.items():
            self._patches.set(kind, "__next__", self._watched_next(real, others if kind is BaseIterator else ()))
        # Asking for the process's number at each mark would cost more than the mark.
        at_fork(self._leave)
        self._handles = [
            register_optimizer_step_pre_hook(self._stepping),
            register_optimizer_step_post_hook(self._stepped),
        ]

    def remove(self) -> None:
        """Ends it; torch is as it was."""
        self._patches.restore()
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _leave(self) -> None:
        self._forked = True

    # -- loaders -----------------------------------------------------------------------------------------------------

    def _watched_next(self, real_next: Callable[[Any], Any], others: tuple[type, ...]) -> Callable[[Any], Any]:
        """Takes the place of a ``__next__``: the same between two marks, unless it runs inside of another kind's."""
        watch, mark, loaders = self, self._raw.append, self.loaders

        @functools.wraps(real_next)
        def watched_next(self: Any) -> Any:
            if watch._forked or isinstance(self, others):
                return real_next(self)
            thread = get_ident()
            if not watch._primary or not watch.by_optimizer:
                watch._count_batch()
            mark((_ASKED, perf_counter(), thread, 0, thread_time()))
            try:
                if watch.sampling:
                    with record_function(NEXT):
                        batch = real_next(self)
                else:
                    batch = real_next(self)
            finally:
                mark((_DELIVERED, perf_counter(), thread, 0, thread_time()))
            dataset = id(dataset_of(self))
            found = loaders.get(dataset)
            if found is None:
                loaders[dataset] = found = watch._facts(self, batch)
            found.batches += 1
            return batch

        return watched_next

    def _count_batch(self) -> None:
        """Where no optimizer steps, batches do."""
        self._asked += 1
        if self.by_optimizer and self._asked > ENOUGH_BATCHES:
            self.by_optimizer = False
        if not self.by_optimizer:
            self._on_step(self._asked - 1, False)

    def _facts(self, iterator: Any, batch: Any) -> _Loader:
        return _Loader(
            LoaderFacts(
                site=call_site(3),
                dataset=type(dataset_of(iterator)).__name__,
                workers=num_workers_of(iterator),
                batch_size=_samples_of(batch),
            )
        )

    # -- optimizers --------------------------------------------------------------------------------------------------

    def _stepping(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._forked:
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
        self._raw.append((_STEPPING, perf_counter(), get_ident(), id(optimizer), 0.0))
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
                self._raw.append((_STEPPING, perf_counter(), get_ident(), id(optimizer), 0.0))

        return between

    def _stepped(self, optimizer: Optimizer, _: Any, __: Any) -> None:
        if self._forked:
            return
        self._raw.append((_STEPPED, perf_counter(), get_ident(), id(optimizer), 0.0))
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
        return max(self.loaders.values(), key=lambda found: found.batches).facts


def _samples_of(batch: Any) -> int | None:
    """The first size of the first tensor; looks at most a few levels deep, and calls nothing of the program's."""
    torch: Any = sys.modules["torch"]
    if isinstance(batch, torch.Tensor):
        return int(batch.shape[0]) if batch.dim() else None
    named = cast("object", batch) if isinstance(batch, dict) else getattr(batch, "data", None)
    if isinstance(named, dict):
        values = list(cast("dict[Any, Any]", named).values())
    else:
        values = list(cast("list[Any]", batch)) if isinstance(batch, (list, tuple)) else []
    return next((size for value in values[:8] if (size := _samples_of(value)) is not None), None)

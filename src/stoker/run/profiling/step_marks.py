"""The clock of a profiled process: stores a mark for each event. Costs microseconds a step.

Loaders that stoker serves report to the clock as usual; torch's own iterators are patched to do so.
"""

from __future__ import annotations

import functools
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from threading import get_ident
from time import monotonic, thread_time
from typing import Any, cast

from torch.autograd.profiler import record_function
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from stoker.core.patching import Patches
from stoker.core.processes.forking import at_fork
from stoker.feed.loader.iterator import FedIterator
from stoker.feed.loader.loader_feed import LoaderFeed
from stoker.feed.torch_private import BaseIterator, dataset_of, num_workers_of
from stoker.perf.diagnosis.marks import Mark, MarkKind
from stoker.perf.diagnosis.timeline import CLOSURE, NEXT, OPTIMIZER
from stoker.records.profile import LoaderFacts
from stoker.run.loaders.serving import call_site
from stoker.run.loaders.steps import StepClock

ENOUGH_BATCHES = 40
"""Batches without an optimizer step after which batches count as steps; accumulation over more is rare."""

_ASKED, _DELIVERED, _STEPPING, _STEPPED = (kind.value for kind in MarkKind)


@dataclass(slots=True)
class _Loader:
    facts: LoaderFacts
    batches: int = 0


class StepRecorder(StepClock):
    """Stores marks in this process; its forks (data workers) do not.

    Args:
        on_step: called at each end of a step with its number, from 0, and whether optimizer steps count.
        now_s: monotonic seconds.
    """

    def __init__(self, on_step: Callable[[int, bool], None], now_s: Callable[[], float] = monotonic) -> None:
        super().__init__(now_s)
        self._raw: list[tuple[int, float, int, int, float]] = []
        self.by_optimizer = True
        self.optimizers: set[int] = set()
        self.device = "cpu"
        self.dtype = ""
        self.loaders: dict[int, _Loader] = {}
        """Keyed by the identity of their datasets."""
        self.sampling = False
        """Whether ranges are wanted in the trace."""
        self._on_step = on_step
        self._recording = False
        self._primary = 0
        self._ends = 0
        self._batches = 0
        self._pre_hook: Any = None
        self._patches = Patches("steps are profiled")
        self._waits: defaultdict[int, list[record_function]] = defaultdict(list)
        """Per thread, the ranges of its current calls of ``next``."""
        self._range: Any = None

    @property
    def marks(self) -> list[Mark]:
        """All marks so far, in the order in which they were set."""
        return [Mark(MarkKind(kind), t_s, thread, owner, cpu_s) for kind, t_s, thread, owner, cpu_s in self._raw]

    def install(self) -> None:
        """Begins to see optimizer steps and torch's own iterators."""
        self._recording = True
        self._patches.set(BaseIterator, "__next__", self._watched_next(BaseIterator.__next__))
        # Asking for the process's number at each mark would cost more than the mark.
        at_fork(self._leave)
        self._pre_hook = register_optimizer_step_pre_hook(self._stepping)
        super().install()

    def end(self) -> None:
        """Ends the recording; the clock continues."""
        self._recording = self.sampling = False
        self._patches.restore()
        if self._pre_hook is not None:
            self._pre_hook.remove()
            self._pre_hook = None

    def remove(self) -> None:
        """Ends both; torch is as it was."""
        self.end()
        super().remove()

    def _leave(self) -> None:
        self._recording = False

    # -- what iterators tell -----------------------------------------------------------------------------------------

    def asked(self, feed: LoaderFeed) -> None:
        """The program called ``next`` of a served loader."""
        self._enter()
        super().asked(feed)

    def delivered(self, feed: LoaderFeed) -> None:
        """The program gets a batch of it."""
        super().delivered(feed)
        self._exit()

    def failed(self, feed: LoaderFeed, *, ended: bool) -> None:
        """The program gets an exception from it."""
        super().failed(feed, ended=ended)
        self._exit()

    def _enter(self) -> None:
        if not self._recording:
            return
        if not self._primary or not self.by_optimizer:
            self._count_batch()
        thread = get_ident()
        self._raw.append((_ASKED, self._now_s(), thread, 0, thread_time()))
        if self.sampling:
            self._waits[thread].append(wait := record_function(NEXT))
            wait.__enter__()

    def _exit(self) -> None:
        thread = get_ident()
        if self._waits and (waits := self._waits[thread]):
            waits.pop().__exit__(None, None, None)
        if self._recording:
            self._raw.append((_DELIVERED, self._now_s(), thread, 0, thread_time()))

    def _watched_next(self, real_next: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Takes the place of torch's ``__next__``, which that of a served loader calls as well."""
        recorder, loaders = self, self.loaders

        @functools.wraps(real_next)
        def watched_next(self: Any) -> Any:
            if not recorder._recording:
                return real_next(self)
            if isinstance(self, FedIterator):
                batch = real_next(self)
            else:
                recorder._enter()
                try:
                    batch = real_next(self)
                finally:
                    recorder._exit()
            dataset = id(dataset_of(self))
            found = loaders.get(dataset)
            if found is None:
                loaders[dataset] = found = recorder._facts(self, batch)
            found.batches += 1
            return batch

        return watched_next

    def _count_batch(self) -> None:
        """Where no optimizer steps, batches do."""
        self._batches += 1
        if self.by_optimizer and self._batches > ENOUGH_BATCHES:
            self.by_optimizer = False
        if not self.by_optimizer:
            self._on_step(self._batches - 1, False)

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
        if not self._recording:
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
        self._raw.append((_STEPPING, self._now_s(), get_ident(), id(optimizer), 0.0))
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
                self._raw.append((_STEPPING, self._now_s(), get_ident(), id(optimizer), 0.0))

        return between

    def stepped(self, optimizer: Any) -> None:
        """It has made the step."""
        if self._clocks:  # otherwise no loader is served, and the time is not needed
            super().stepped(optimizer)
        if not self._recording:
            return
        self._raw.append((_STEPPED, self._now_s(), get_ident(), id(optimizer), 0.0))
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
    """The first size of the first tensor; searches a few levels deep, and calls no code of the program."""
    torch: Any = sys.modules["torch"]
    if isinstance(batch, torch.Tensor):
        return int(batch.shape[0]) if batch.dim() else None
    named = cast("object", batch) if isinstance(batch, dict) else getattr(batch, "data", None)
    if isinstance(named, dict):
        values = list(cast("dict[Any, Any]", named).values())
    else:
        values = list(cast("list[Any]", batch)) if isinstance(batch, (list, tuple)) else []
    return next((size for value in values[:8] if (size := _samples_of(value)) is not None), None)

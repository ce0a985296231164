"""Connects the automatic cut to the loaders of a process: sends plans to their workers, and verdicts to the records."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import Any

from stoker.core.mishaps import reraise_from_handler
from stoker.feed.loader.loader_feed import LoaderFeed, StepCutter
from stoker.feed.program import Tier
from stoker.feed.state.window import Counters
from stoker.graph.choice.cut import Prices
from stoker.graph.cut_control import Cutter, CutVerdict, measure_bandwidth
from stoker.graph.dataflow import Cut, Node
from stoker.graph.loop_memory import LoopMemory
from stoker.graph.recording.deferred import PATCHES, guard_capsules
from stoker.graph.watching.step_watcher import Conductor
from stoker.records import events

_FREE = Prices(bytes_per_s=1e15, tensor_s=0.0, verify_s=0.0, worker_s_price=0.0, min_saving_frac=0.0)
"""Prices at which everything moves that can."""


_MAX_LOADERS = 64
"""Loaders whose verdicts are kept; programs may make one for every epoch."""


class Cutting:
    """The cuts of all loaders of one process.

    Args:
        emit: takes records.
        now_s: seconds since the run started.
        cores: that this process and its data workers may use.
        always: moves all that can move and keeps it, whether it pays or not.
        sample: random calls on a batch draw from a stream of the work item's own, and may move.
    """

    def __init__(
        self,
        emit: Callable[[events.AnyEvent], None],
        now_s: Callable[[], float],
        cores: Callable[[], float],
        *,
        always: bool = False,
        sample: bool = False,
    ) -> None:
        self._emit = emit
        self._now_s = now_s
        self._cores = cores
        self._conductor = Conductor()
        guard_capsules()
        _open.add(self)
        self._verdicts: dict[int, dict[int, CutVerdict]] = {}
        self._memories: dict[tuple[str, str], LoopMemory] = {}
        self._always = always
        self._sample = sample
        self._bytes_per_s: float | None = None

    def cutter(self, feed: LoaderFeed, loop: tuple[str, str]) -> StepCutter:
        """The cutter of one loader's steps.

        Args:
            feed: the loader.
            loop: where the program made it, and where it iterates: steps of the same loop are the same steps.
        """
        memory = self._memories.setdefault(loop, LoopMemory()) if all(loop) else LoopMemory()

        items = _Items(feed)

        def measured() -> Prices:
            if self._bytes_per_s is None:
                self._bytes_per_s = measure_bandwidth()
            return items.prices(self._bytes_per_s, self._cores())

        def report(verdict: CutVerdict) -> None:
            self._verdicts.setdefault(feed.number, {})[verdict.variant] = verdict
            while len(self._verdicts) > _MAX_LOADERS:
                del self._verdicts[next(iter(self._verdicts))]
            self._emit(record_of(verdict, feed.number, self._now_s()))

        def fail(error: Exception) -> None:
            feed.effort.failed("inspect a loader's steps", error, "the steps of this loader are not cut")

        cutter = Cutter(
            self._conductor,
            feed.stage,
            report,
            _FREE if self._always else measured,
            tried=not self._always,
            sample=self._sample,
            fail=fail,
            memory=memory,
        )
        return _Careful(cutter, items, fail)

    def verdicts(self, loader: int) -> list[CutVerdict]:
        """The outcome for each variant of a loader, as far as it is known."""
        return list(self._verdicts.get(loader, {}).values())

    def close(self) -> None:
        """Stops recording."""
        self._conductor.close()
        _open.discard(self)
        if not _open:
            PATCHES.restore()


_open: weakref.WeakSet[Cutting] = weakref.WeakSet()
"""Cutters that may still record: torch's names are restored after the last of them."""


class _Items:
    """Worker time per item since the first batch: earlier items met cold caches and pages."""

    def __init__(self, feed: LoaderFeed) -> None:
        self._feed = feed
        self._first: Counters | None = None

    def arrived(self) -> None:
        """A batch was delivered."""
        if self._first is None:
            self._first = self._feed.counters.copy()

    def prices(self, bytes_per_s: float, cores: float) -> Prices:
        """What moving calls to the data workers costs.

        Where their number is given, wall time counts. Where it is stoker's, items that wait get more workers: processor
        time counts, on the cores that the training process leaves.
        """
        now, first, choice = self._feed.counters, self._first or Counters(), self._feed.choice
        items = max(1, now.items - first.items)
        if self._feed.services.config.workers is None and choice is not None and choice.tier is Tier.ELASTIC:
            item_s = (now.worker_cpu_s - first.worker_cpu_s) / items
            return Prices(bytes_per_s=bytes_per_s, item_s=item_s, workers=max(1.0, cores - 1.0), waits_overlap=True)
        item_s = (now.worker_busy_s - first.worker_busy_s) / items
        return Prices(bytes_per_s=bytes_per_s, item_s=item_s, workers=max(1, self._feed.num_workers))


class _Careful:
    """A cutter whose internal errors turn the cut off for its loader."""

    def __init__(self, cutter: Cutter, items: _Items, fail: Callable[[Exception], None]) -> None:
        self._cutter = cutter
        self._items = items
        self._fail = fail
        self._ended = False
        self.batch_of = cutter.batch_of

    def asked(self) -> None:
        self._try(self._cutter.asked)

    def failed(self) -> None:
        self._try(self._cutter.failed)

    def left(self) -> None:
        self._try(self._cutter.left)

    def delivered(self, item: Any, seed: Callable[[], int]) -> Any:
        if not self._ended:
            try:
                self._items.arrived()
                return self._cutter.delivered(item, seed)
            except Exception as error:
                reraise_from_handler(error)
                self._end(error)
        return self.batch_of(item)

    def _try(self, tell: Callable[[], None]) -> None:
        if not self._ended:
            try:
                tell()
            except Exception as error:
                reraise_from_handler(error)
                self._end(error)

    def _end(self, error: Exception) -> None:
        self._ended = True
        for stop in (self._cutter.abandon, lambda: self._fail(error)):
            with contextlib.suppress(Exception):
                stop()


def record_of(verdict: CutVerdict, loader: int, t_s: float) -> events.CutChosen:
    """A verdict as a record, with all that a picture needs."""
    graph, cut = verdict.graph, verdict.cut
    before = sum(value.size_bytes for value in graph.values if value.producer is None)
    predicted = cut.saved_s
    measured = verdict.gain * graph.step_s
    return events.CutChosen(
        t_s=t_s,
        loader=loader,
        variant=verdict.variant,
        steps=graph.steps,
        step_s=graph.step_s,
        outcome=verdict.outcome,
        reason=verdict.reason,
        saved_s=measured if verdict.gain else predicted,
        worker_s=cut.worker_s,
        bytes_before=before,
        bytes_after=before + cut.boundary_bytes,
        nodes=[_node(cut, node) for node in graph.nodes],
        values=[
            events.GraphValue(
                number=value.number,
                producer=value.producer,
                label=f"batch[{value.position}]" if value.producer is None else f"x{value.number}",
                shape=list(value.shape),
                dtype=value.dtype,
                size_bytes=value.size_bytes,
                crosses=value.producer is None or value.number in cut.boundary,
                kept=graph.kept.get(value.number, ""),
            )
            for value in graph.values
        ],
    )


def _node(cut: Cut, node: Node) -> events.GraphNode:
    place = "stateful" if node.state else "moved" if node.number in cut.moved else "stateless"
    why = node.state or cut.stayed.get(node.number, "")
    return events.GraphNode(
        number=node.number,
        function=node.function,
        inputs=list(node.inputs),
        outputs=list(node.outputs),
        seconds=node.seconds,
        site=node.site,
        place=place,
        why=why,
    )

"""Where a loader's time goes, from marks that cost a microsecond: asked, delivered, optimizer stepped. One clock.

From asking to having it is *input wait*, all of it: ``iter`` and ``next`` at their outermost edge, stoker's own work
included. From a delivery to the next request is the program's step. Up to the end of the last optimizer step in it is
*compute* (all of it where none stepped, as in evaluation), the rest is *other* (logging, checkpoints, Python), and so
is the time inside another loader's ``next``: for this one it is the rest of the loop. From the end of an iteration to
the next ``iter`` is a *pause* (a validation pass between epochs), and part of nothing. Between two deliveries these
parts sum to the time that passed, since each begins where the one before it ended.

On a GPU, calls return before the device has finished, and the program waits for it later: where it reads its loss. So
of the rest of a step only the time in which the device had nothing left of the optimizer's step is *other*
(:mod:`~stoker.run.loaders.device_marks`); what came before is *compute*. A copy to the device counts where the host
waits for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import get_ident
from time import monotonic
from typing import Any, Protocol

import msgspec

from stoker.core.mishaps import reraise_from_handler
from stoker.feed.loader.loader_feed import LoaderFeed
from stoker.feed.state.window import Counters


class DeviceMarks(Protocol):
    """Says how long a device had nothing to do behind an optimizer's step."""

    def stepped(self, optimizer: Any) -> None:
        """An optimizer's step was launched."""
        ...

    def asked(self, rest_s: float, answer: Callable[[float, float], None]) -> None:
        """The program asks for a batch; later ``answer`` is called with ``rest_s`` and the device's idle seconds."""
        ...


class LoaderTotals(msgspec.Struct, frozen=True, gc=False):
    """A loader's cumulative figures as they were when the program got a batch."""

    at_s: float
    batches: int
    samples: int
    bytes: int
    starved_steps: int
    starved_s: float
    input_wait_s: float
    h2d_s: float
    compute_s: float
    other_s: float
    paused_s: float
    optimizer_steps: int


NOTHING_DELIVERED = LoaderTotals(0.0, 0, 0, 0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0)


@dataclass(slots=True)
class _Thread:
    """The time that one thread has spent inside ``iter`` and ``next`` of any loader, and which it is in now."""

    inside_s: float = 0.0
    depth: int = 0
    entered_s: float = 0.0

    def enter(self, now_s: float) -> None:
        self.depth += 1
        if self.depth == 1:
            self.entered_s = now_s

    def leave(self, now_s: float) -> None:
        self.depth = max(0, self.depth - 1)
        if not self.depth:
            self.inside_s += now_s - self.entered_s


class LoaderClock:
    """The time of one loader, in parts that follow each other without a gap."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._working = False
        """A batch was delivered, and the program has not asked for another."""
        self._since_s: float | None = None
        """Start of the current step or pause; None before the first request."""
        self._elsewhere_s = 0.0
        """What the thread had spent inside of loaders by then."""
        self.compute_s = 0.0
        self.other_s = 0.0
        self.rest_s = 0.0
        """What came behind the optimizer's step, in the last one."""
        self.paused_s = 0.0
        self.optimizer_steps = 0
        self.first: LoaderTotals | None = None
        self._last: LoaderTotals | None = None
        self._taken = True
        """The figures of the last delivery are in ``_last``."""

    @property
    def last(self) -> LoaderTotals | None:
        """The figures at the last delivery; None before it.

        They are computed on access, or before they change: in the program's next call of ``next``, so that the time it
        takes counts as input wait too.
        """
        if not self._taken and self._since_s is not None:
            counters = self._counters
            self._taken = True
            self._last = LoaderTotals(
                self._since_s,
                counters.batches,
                counters.samples,
                counters.bytes,
                counters.starved_steps,
                counters.starved_s,
                counters.input_wait_s,
                0.0,  # h2d_s: if the host waits for a copy, the wait is part of the step
                self.compute_s,
                self.other_s,
                self.paused_s,
                self.optimizer_steps,
            )
            self.first = self.first or self._last
        return self._last

    def asked(self, now_s: float, inside_s: float, stepped: tuple[float, float]) -> None:
        """The program calls ``next``: its step, or the pause, is over.

        Args:
            now_s: of the call.
            inside_s: what its thread had spent inside of loaders before.
            stepped: when an optimizer made its last step, and what its thread had spent inside of loaders by then.
        """
        self.rest_s = 0.0
        self._close(now_s, inside_s, stepped)
        self._counters.asked_s = now_s

    def begun(self, now_s: float) -> None:
        """The program calls ``iter``; a step that was left open has been followed by who knows what."""
        self._working = False
        self._close(now_s, 0.0, (0.0, 0.0))
        self._counters.asked_s = now_s

    def answered(self, now_s: float, inside_s: float, *, working: bool) -> None:
        """``iter`` or ``next`` returns: a step begins, or a pause."""
        counters = self._counters
        if counters.asked_s is not None:
            counters.input_wait_s += now_s - counters.asked_s
            counters.asked_s = None
        self._working, self._since_s, self._elsewhere_s = working, now_s, inside_s

    def delivered(self, now_s: float, inside_s: float) -> None:
        """``next`` returns a batch."""
        self.answered(now_s, inside_s, working=True)
        self._taken = False

    def left(self, now_s: float, inside_s: float, stepped: tuple[float, float]) -> None:
        """The program has left the iteration: the step that it left in is over, and a pause begins."""
        if self._working and self._counters.asked_s is None:
            self._close(now_s, inside_s, stepped)
            self._working, self._since_s = False, now_s

    def _close(self, now_s: float, inside_s: float, stepped: tuple[float, float]) -> None:
        since_s = self._since_s
        if since_s is None:
            return
        _ = self.last  # computed before the counters advance
        length_s = now_s - since_s
        if not self._working:
            self.paused_s += length_s
            return
        elsewhere_s = inside_s - self._elsewhere_s
        end_s, inside_then_s = stepped
        if end_s > since_s:
            compute_s = end_s - since_s - min(elsewhere_s, max(0.0, inside_then_s - self._elsewhere_s))
        else:
            compute_s = length_s - elsewhere_s
        compute_s = min(length_s, max(0.0, compute_s))
        self.compute_s += compute_s
        self.rest_s = length_s - compute_s
        self.other_s += self.rest_s
        self._counters.step_s += length_s

    def device_idle(self, rest_s: float, idle_s: float) -> None:
        """The device has said how long it had nothing to do in the rest of an earlier step; the other part is compute.

        Args:
            rest_s: of that step, as it was counted.
            idle_s: from the device's end of the optimizer's step to the end of the program's.
        """
        computing_s = rest_s - min(rest_s, max(0.0, idle_s))
        self.other_s -= computing_s
        self.compute_s += computing_s


class StepClock:
    """Follows the steps of all loaders of a process: its iterators and optimizers report here.

    Args:
        now_s: monotonic seconds.
        device: marks on the device's own time.
    """

    def __init__(self, now_s: Callable[[], float] = monotonic, device: DeviceMarks | None = None) -> None:
        self._now_s, self._device = now_s, device
        self._clocks: dict[int, LoaderClock] = {}
        self._threads: dict[int, _Thread] = {}
        self._current: LoaderClock | None = None
        self._stepped = (0.0, 0.0)
        self._hook: Any = None

    def install(self) -> None:
        """Begins to see optimizer steps."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._hook = register_optimizer_step_post_hook(self._stepped_safely)

    def remove(self) -> None:
        """Ends it; reports of iterators still count."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def of(self, feed: LoaderFeed) -> LoaderClock:
        """The time of one loader."""
        clock = self._clocks.get(feed.number)
        if clock is None:
            clock = self._clocks[feed.number] = LoaderClock(feed.counters)
        return clock

    def is_inside(self) -> bool:
        """Whether this thread is inside ``iter`` or ``next`` of a loader."""
        thread = self._threads.get(get_ident())
        return thread is not None and thread.depth > 0

    def _thread(self) -> _Thread:
        number = get_ident()
        thread = self._threads.get(number)
        if thread is None:
            thread = self._threads[number] = _Thread()
        return thread

    def begun(self, feed: LoaderFeed) -> None:
        """The program called ``iter``."""
        now_s = self._now_s()
        self._thread().enter(now_s)
        self.of(feed).begun(now_s)

    def opened(self, feed: LoaderFeed) -> None:
        """It returned; until the first ``next`` the program may do anything."""
        self._answered(feed, working=False)

    def asked(self, feed: LoaderFeed) -> None:
        """The program called ``next``: its step is over."""
        now_s = self._now_s()
        thread = self._thread()
        clock = self.of(feed)
        clock.asked(now_s, thread.inside_s, self._stepped)
        thread.enter(now_s)
        self._current = None
        if self._device is not None:
            self._device.asked(clock.rest_s, clock.device_idle)

    def delivered(self, feed: LoaderFeed) -> None:
        """The program gets a batch."""
        thread = self._thread()
        self._current = clock = self.of(feed)
        now_s = self._now_s()  # as late as possible
        thread.leave(now_s)
        clock.delivered(now_s, thread.inside_s)

    def failed(self, feed: LoaderFeed, *, ended: bool) -> None:
        """The program gets an exception; unless it is the end of the iteration, it may ask again."""
        self._answered(feed, working=not ended)

    def left(self, feed: LoaderFeed) -> None:
        """The program has left an iteration before its end."""
        self.of(feed).left(self._now_s(), self._thread().inside_s, self._stepped)

    def _answered(self, feed: LoaderFeed, *, working: bool) -> None:
        thread, now_s = self._thread(), self._now_s()
        thread.leave(now_s)
        self.of(feed).answered(now_s, thread.inside_s, working=working)

    def _stepped_safely(self, optimizer: Any, *_: object) -> None:
        """Runs inside the program's own call of ``step``: an internal error must not end that."""
        try:
            self.stepped(optimizer)
        except Exception as error:
            reraise_from_handler(error)
            self.remove()  # without it, time after the optimizer's step counts as compute

    def stepped(self, optimizer: Any) -> None:
        """An optimizer has made a step."""
        self._stepped = self._now_s(), self._thread().inside_s
        if self._device is not None:
            self._device.stepped(optimizer)
        if self._current is not None:
            self._current.optimizer_steps += 1

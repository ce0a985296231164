# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (torch's hooks are untyped)
"""Where a step's time goes, from marks that cost nanoseconds: batch asked for, batch delivered, optimizer stepped.

A step runs from the delivery of a batch to the next request for one. Up to the end of the last optimizer step in it is
*compute* (all of it where none stepped, as in evaluation), the rest is *other* (logging, checkpoints, Python). The
time inside ``next`` is *input wait*. On an accelerator, calls return before the device has finished; these are the
host's times, and a copy to the device counts where the host waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic
from typing import Any

from stoker.feed.loader import LoaderFeed


@dataclass(slots=True)
class Split:
    """Cumulative parts of one loader's steps, beside the input wait that the feed counts."""

    h2d_s: float = 0.0
    compute_s: float = 0.0
    other_s: float = 0.0
    optimizer_steps: int = 0
    """Made after a batch of this loader was delivered and before another was asked for, of whichever loader."""


class StepClock:
    """Follows the steps of all loaders of a process."""

    def __init__(self) -> None:
        self._splits: dict[int, Split] = {}
        self._delivered_s: dict[int, float] = {}
        self._current: Split | None = None
        self._since_s = 0.0
        self._optimizer_s = 0.0
        self._hook: Any = None

    def install(self) -> None:
        """Begins to see optimizer steps."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._hook = register_optimizer_step_post_hook(self._stepped)

    def remove(self) -> None:
        """Ends it."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def split(self, number: int) -> Split:
        """The parts of a loader's steps so far."""
        return self._splits.setdefault(number, Split())

    def begun(self, feed: LoaderFeed) -> None:
        """A new iteration: the time before it belongs to no step."""
        self._delivered_s.pop(feed.number, None)

    def asked(self, feed: LoaderFeed, now_s: float) -> None:
        """The program called ``next``: the step of whichever loader delivered last is over."""
        split = self._current
        if split is not None:
            compute_end = self._optimizer_s if self._optimizer_s > self._since_s else now_s
            split.compute_s += compute_end - self._since_s
            split.other_s += now_s - compute_end
            self._current = None
        last = self._delivered_s.get(feed.number)
        if last is not None:
            feed.counters.step_s += now_s - last

    def delivered(self, feed: LoaderFeed, now_s: float) -> None:
        """The program gets a batch."""
        self._current, self._since_s = self.split(feed.number), now_s
        self._delivered_s[feed.number] = now_s

    def _stepped(self, *_: object) -> None:
        self._optimizer_s = monotonic()
        if self._current is not None:
            self._current.optimizer_steps += 1

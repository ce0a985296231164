"""Whether a split pays, by the steps before and after it: it can't take turns with what it replaces. Pure."""

from __future__ import annotations

from statistics import median

from stoker.core.trials.alternating import CutTrial


class SplitTrial:
    """Compares medians of as many steps before and after a change.

    All ranks count alike, and so know when to change; the verdict is that of the rank whose times count.
    """

    LEAST_GAIN = CutTrial.LEAST_GAIN
    STEPS = 16
    SETTLING = 3
    """Steps that are skipped first: DDP orders its buckets again in the first one with a new reducer."""

    def __init__(self) -> None:
        self.before: list[float] = []
        self.after: list[float] = []
        self._times, self._settling = self.before, self.SETTLING

    def add(self, seconds: float) -> None:
        """A step has ended that took so long."""
        if self._settling:
            self._settling -= 1
        elif len(self._times) < self.STEPS:
            self._times.append(seconds)

    @property
    def is_due(self) -> bool:
        """Whether the steps before are enough."""
        return self._times is self.before and len(self.before) >= self.STEPS

    def change(self) -> None:
        """From the next step on it is split."""
        self._times, self._settling = self.after, self.SETTLING

    @property
    def verdict(self) -> float | None:
        """Share of a step's time that is saved; None as long as there are too few steps."""
        if len(self.after) < self.STEPS:
            return None
        return 1.0 - median(self.after) / median(self.before)

"""When to sample and when to stop: decided at each end of a step, from its number alone."""

from __future__ import annotations

from enum import Enum

from stoker.run.profiling.options import ProfileOptions


class Do(Enum):
    """What is due at the end of a step."""

    NOTHING = "nothing"
    SAMPLE = "sample"
    MARK = "mark"
    """Sampling continues; mark the step's end in the trace."""
    HALT = "halt"
    """Sampling ends."""
    MEASURE = "measure"
    """Nothing disturbs from here on."""
    FINISH = "finish"


class Schedule:
    """Warm-up, a window of sampled steps with one before and one after to settle, then undisturbed steps.

    The window comes first, so that a program with few steps is divided into parts as well.

    Args:
        options: how much.
        begin: number of the end of a step from which on steps count; warm-up included.
    """

    def __init__(self, options: ProfileOptions, begin: int) -> None:
        self.first = begin + options.warmup
        """Number of the first step that counts."""
        self._halt = self.first + 1 + options.sampled
        self._measure = self._halt + 1
        self._finish = self.first + options.steps
        self.disturbed = (self.first, self._measure)
        """Numbers of the first step that sampling disturbs and of the first after them."""

    def at(self, end: int) -> Do:
        """What is due at the end of step ``end - 1``, where step ``end`` begins."""
        if end >= self._finish:
            return Do.FINISH
        if end == self.first:
            return Do.SAMPLE
        if end == self._halt:
            return Do.HALT
        if end == self._measure:
            return Do.MEASURE
        return Do.MARK if self.first < end < self._halt else Do.NOTHING

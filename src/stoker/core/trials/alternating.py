"""Measures whether a cut pays, by steps with and without it in the running program. Pure; time is an argument."""

from __future__ import annotations

import enum
from statistics import median
from typing import ClassVar


class Arm(enum.Enum):
    """Whether a step ran with the cut."""

    ON = "on"
    OFF = "off"


class CutTrial:
    """Alternates the arms in blocks and compares the medians of the time from batch to batch.

    A trial that is lost while something disturbed the program is repeated later.

    Batches made before an arm began still arrive in it: those whose label is not the arm's are not counted, and the
    first steps after a change are skipped.
    """

    LEAST_GAIN: ClassVar[float] = 0.02
    BLOCK: ClassVar[int] = 8
    PAIRS: ClassVar[int] = 3
    SETTLING: ClassVar[int] = 2
    """Steps of an arm that are skipped after a change."""
    HOPELESS: ClassVar[float] = 1.25
    """A cut with which steps take this many times as long is given up after any pair of blocks."""
    PATIENCE: ClassVar[int] = 400
    """Steps within which an arm's batches must arrive."""
    STEADY: ClassVar[float] = 1.15
    """If blocks of one arm differ by more than this factor, something else disturbed the trial."""
    REST: ClassVar[int] = 400
    """Steps without the cut after which a disturbed trial that was lost restarts."""
    TRIALS: ClassVar[int] = 3

    def __init__(self) -> None:
        self.arm = Arm.ON
        self.verdict: float | None = None
        """Measured gain once known: 1 - time with the cut / time without it."""
        self._tries = 1
        self._resting = 0
        self._last_s: float | None = None
        self._begin()

    def _begin(self) -> None:
        self.arm = Arm.ON
        self._block: list[float] = []
        self._settling = self.SETTLING
        self._waited = 0
        self._medians: dict[Arm, list[float]] = {Arm.ON: [], Arm.OFF: []}
        self._fastest_on_s = float("inf")

    def add(self, label: Arm, now_s: float) -> None:
        """Records that a step on a batch labelled ``label`` ended at ``now_s``."""
        whole = now_s - self._last_s if self._last_s is not None else None
        self._last_s = now_s
        if self._resting:
            self._resting -= 1
            if not self._resting:
                self._begin()
            return
        if label is not self.arm:
            self._settling = self.SETTLING
            self._waited += 1
            if self._waited > self.PATIENCE:
                self.verdict = 0.0
            return
        if self._settling > 0 or whole is None:
            self._settling -= 1
            return
        self._block.append(whole)
        if label is Arm.ON:
            self._fastest_on_s = min(self._fastest_on_s, whole)
        if len(self._block) >= self.BLOCK:
            self._end_block()

    def pause(self) -> None:
        """Excludes the time until the next step, since the program does something else."""
        self._last_s = None

    def _end_block(self) -> None:
        self._medians[self.arm].append(median(self._block))
        self._block.clear()
        self._waited, self._settling = 0, self.SETTLING
        self.arm = Arm.OFF if self.arm is Arm.ON else Arm.ON
        on, off = self._medians[Arm.ON], self._medians[Arm.OFF]
        hopeless = len(on) == len(off) and median(on) > self.HOPELESS * median(off)
        if hopeless or (len(off) == self.PAIRS and len(on) == self.PAIRS):
            gain = 1.0 - median(on) / median(off)
            if gain < self.LEAST_GAIN and self._tries < self.TRIALS and self._is_disturbed():
                self._tries += 1
                self.arm, self._resting = Arm.OFF, self.REST
            else:
                self.verdict = gain

    def _is_disturbed(self) -> bool:
        on, off = self._medians[Arm.ON], self._medians[Arm.OFF]
        return any(max(times) > self.STEADY * min(times) for times in (on, off)) or self._fastest_on_s < median(off)

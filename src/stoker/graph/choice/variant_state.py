"""What steps on like batches have shown of their recording and its cut, one after the other. Pure."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple


class VariantPhase(enum.Enum):
    """What is done with the steps."""

    RECORDING = enum.auto()
    COMPARING = enum.auto()
    ON = enum.auto()
    """On trial, or after it."""
    WHOLE = enum.auto()
    """Nothing is moved, for good."""


class Shown(enum.Enum):
    """What a step has shown."""

    DIFFERS = "values from a data worker differ in bits from those made here"
    NEEDED = "values are needed in a way that was not recorded"
    OTHER_PHASE = "the program does something else now"
    DOUBTED = "a call does not come as recorded"
    PROVEN = "enough steps were as recorded, bit by bit"


class Finding(NamedTuple):
    """What was found out.

    Attributes:
        numbers: of the values, or of the call.
    """

    shown: Shown
    numbers: tuple[int, ...] = ()


@dataclass(slots=True)
class VariantState:
    """Steps on batches that look the same: those of the phase in which the program is."""

    COMPARED_STEPS: ClassVar[int] = 3
    OTHER_PHASE: ClassVar[int] = 12
    """Steps in a row that are not as recorded: the program does something else now, which is recorded as well."""
    WINDOW: ClassVar[int] = 32
    """Steps over which broken ones are counted."""

    phase: VariantPhase = VariantPhase.RECORDING
    compared: int = 0
    steps: int = 0
    in_a_row: int = 0
    """Steps, up to the last one, that were not as recorded."""
    iterations: int = 0
    """Iterations since it was left whole."""
    missed: Counter[int] = field(default_factory=Counter[int])
    """Calls that did not come as recorded, and in how many of the steps."""
    seen_realised: Counter[int] = field(default_factory=Counter[int])

    def begin_comparing(self) -> None:
        """Another cut is in force."""
        self.phase = VariantPhase.COMPARING
        self.compared = self.steps = self.in_a_row = 0
        self.missed.clear()

    def looks_again(self) -> bool:
        """Whether, at the end of an iteration, one that was left whole is recorded again: ever more seldom."""
        if self.phase is not VariantPhase.WHOLE:
            return False
        self.iterations += 1
        if self.iterations.bit_count() > 1:
            return False
        self.phase = VariantPhase.RECORDING
        return True

    def on_step(
        self,
        differing: Collection[int],
        missed: int | None,
        realised: Collection[int],
        kept: Collection[int],
        *,
        complete: bool,
        may_record: bool,
    ) -> Finding | None:
        """What a step on a prepared batch has shown; None for nothing new.

        Args:
            differing: values that differ in bits from those made here.
            missed: number of the call that did not come as recorded; None where all came.
            realised: values that something needed against the recording.
            kept: values of which that is known.
            complete: every moved call came.
            may_record: another phase of the program may be recorded.
        """
        if differing:
            return Finding(Shown.DIFFERS, tuple(differing))
        self.steps += 1
        self.in_a_row = 0 if missed is None else self.in_a_row + 1
        if missed is not None:
            self.missed[missed] += 1
        self.seen_realised.update(realised)
        again = tuple(value for value, times in self.seen_realised.items() if times >= 2 and value not in kept)
        if again:
            return Finding(Shown.NEEDED, again)
        if missed is not None and self.in_a_row >= self.OTHER_PHASE and may_record:
            return Finding(Shown.OTHER_PHASE, (missed,))
        if self.steps >= self.WINDOW:
            return self._close_window()
        if self.phase is VariantPhase.COMPARING and complete:
            self.compared += 1
            if self.compared >= self.COMPARED_STEPS:
                self.phase = VariantPhase.ON
                return Finding(Shown.PROVEN)
        return None

    def _close_window(self) -> Finding | None:
        broken, steps, most = self.missed.total(), self.steps, self.missed.most_common(1)
        self.steps = 0
        self.missed.clear()
        return Finding(Shown.DOUBTED, (most[0][0],)) if broken > steps // 2 else None

"""The state of a variant: what its steps have shown about their recording and its cut. Pure."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple


class VariantPhase(enum.Enum):
    """How the steps of a variant are handled."""

    RECORDING = enum.auto()
    COMPARING = enum.auto()
    ON = enum.auto()
    """The cut is on trial, or has passed it."""
    WHOLE = enum.auto()
    """Nothing is moved until :meth:`VariantState.looks_again`."""


class Shown(enum.Enum):
    """What a step has shown."""

    DIFFERS = "values from a data worker differ in bits from those made here"
    NEEDED = "values are needed in a way that was not recorded"
    OTHER_PHASE = "the program does something else now"
    DOUBTED = "a call does not come as recorded"
    PROVEN = "enough steps were as recorded, bit by bit"


class Finding(NamedTuple):
    """What a step has shown, and about what.

    Attributes:
        numbers: numbers of the values, or of the call.
    """

    shown: Shown
    numbers: tuple[int, ...] = ()


@dataclass(slots=True)
class VariantState:
    """The steps on batches that look the same, in the current phase of the program."""

    COMPARED_STEPS: ClassVar[int] = 3
    OTHER_PHASE: ClassVar[int] = 12
    """Steps in a row that deviate from the recording: the program's new phase is then recorded as well."""
    WINDOW: ClassVar[int] = 32
    """Steps over which those that deviate are counted."""

    phase: VariantPhase = VariantPhase.RECORDING
    compared: int = 0
    steps: int = 0
    in_a_row: int = 0
    """Consecutive steps, up to the last one, that deviated from the recording."""
    iterations: int = 0
    """Iterations since moving was given up."""
    missed: Counter[int] = field(default_factory=Counter[int])
    """Calls that did not come as recorded, each with its number of steps."""
    seen_realised: Counter[int] = field(default_factory=Counter[int])

    def begin_comparing(self) -> None:
        """Starts to compare another cut."""
        self.phase = VariantPhase.COMPARING
        self.compared = self.steps = self.in_a_row = 0
        self.missed.clear()

    def looks_again(self) -> bool:
        """Whether to record again at the end of an iteration while nothing is moved: at doubling intervals."""
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
            realised: values that were needed although the recording says otherwise.
            kept: values already known to be needed.
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

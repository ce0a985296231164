"""When the steps of a loader need not be observed: while the program does nothing with its batches. Pure.

Programs time a loader by an empty loop, or warm something up first. What a step does can't be known before it is over,
so one is watched from time to time, and all are again as soon as one of them touches its batch.
"""

from __future__ import annotations

from typing import ClassVar


class WatchBackoff:
    """Decides how many of the next batches need not be observed."""

    UNUSED_STEPS: ClassVar[int] = 4
    """Watched steps in a row, none of which touched its batch, before the first pause."""
    DOUBLINGS: ClassVar[int] = 7
    """Pauses last 1, 2, 4, … and at last 128 batches: never much longer than the program had done nothing before."""

    def __init__(self) -> None:
        self._unused = 0

    def saw(self, *, used: bool) -> None:
        """A watched step is over, in which the program touched its batch or not."""
        self._unused = 0 if used else self._unused + 1

    @property
    def idle(self) -> bool:
        """Whether the program does nothing with its batches, as far as it was watched."""
        return self._unused >= self.UNUSED_STEPS

    @property
    def pause(self) -> int:
        """How many batches need no watching after the one that is watched now."""
        return 1 << min(self._unused - self.UNUSED_STEPS, self.DOUBLINGS) if self.idle else 0

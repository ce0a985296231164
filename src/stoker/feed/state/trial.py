"""The trial of a loader that declares no workers: its first batches show whether workers would pay."""

from __future__ import annotations

from stoker.feed.state.probing import why_not_probed

TRIAL_BATCHES = 3
MIN_BATCH_S = 0.005
"""Batches that take less are not worth a process."""
MIN_REST_S = 0.5
"""Iterations with less than this left are not, either."""
MAX_WATCH_FRAC = 0.03
"""Comparing the dataset before each delivery may cost this share of the time to make a batch."""


class Trial:
    """What the batches made in the training process have shown so far.

    Args:
        length: batches of an iteration, where that is known.
        keeps_random: a loader whose samples draw from the main random stream must not move.
        free_bytes: memory that could be allocated before the first batch was made; 0 when unknown.
        watch_s: time that the first look at the dataset took.
    """

    def __init__(self, *, length: int | None, keeps_random: bool, free_bytes: int, watch_s: float) -> None:
        self._length = length
        self._keeps_random = keeps_random
        self._free_bytes = free_bytes
        self._watch_s = watch_s
        self._make_s: list[float] = []
        self._batch_bytes = 0
        self._obstacle = ""

    def timed(self, seconds: float) -> None:
        """Records the time that a batch took."""
        self._make_s.append(seconds)

    def seen(self, *, batch_bytes: int, drew: bool, is_plain: bool, changed: bool, watch_s: float) -> None:
        """Records what that batch, and the objects that its dataset refers to, have shown.

        Args:
            batch_bytes: of its tensors and arrays.
            drew: making it drew from the main random stream.
            is_plain: it is the same after a transfer between processes.
            changed: the dataset refers to something else than before the trial.
            watch_s: time that looking at the dataset took.
        """
        self._batch_bytes = max(self._batch_bytes, batch_bytes)
        self._watch_s = min(self._watch_s, watch_s)  # the least disturbed of several
        if drew and self._keeps_random:
            self.give_up(
                "its samples draw from the main random stream (`--random sample` gives each sample a seed instead)"
            )
        elif not is_plain:
            self.give_up("its batches hold objects that a transfer between processes would change")
        elif changed:
            self.give_up("what its dataset refers to changes from batch to batch")

    def give_up(self, why: str) -> None:
        """Keeps the loader here, for a reason that no further batch would change; ``why`` is half a sentence."""
        self._obstacle = why

    @property
    def over(self) -> bool:
        """Whether enough is known to decide."""
        return bool(self._obstacle) or self.is_quick or len(self._make_s) >= TRIAL_BATCHES

    @property
    def is_quick(self) -> bool:
        """Whether even the first batch, which is rarely the fastest, took too little time to pay for a worker."""
        return bool(self._make_s) and self._make_s[0] < MIN_BATCH_S

    def verdict(self) -> str:
        """Why the loader stays, as half a sentence; empty when it is worth moving."""
        if self._obstacle:
            return self._obstacle
        size, seconds = self._batch_bytes, sorted(self._make_s)[len(self._make_s) // 2]
        if why := why_not_probed(sample_bytes=size, batch_bytes=size, workers=1, free_bytes=self._free_bytes):
            return why
        if seconds < MIN_BATCH_S:
            return f"a batch takes {1e3 * seconds:.1f} ms to make: nothing to gain"
        if self._length is not None and (self._length - len(self._make_s)) * seconds < MIN_REST_S:
            return f"an iteration of {self._length} batches of {1e3 * seconds:.0f} ms is too short to gain from it"
        if self._watch_s > MAX_WATCH_FRAC * seconds:
            return f"watching its objects would take {1e3 * self._watch_s:.1f} ms of {1e3 * seconds:.0f} ms a batch"
        return ""

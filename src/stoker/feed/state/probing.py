"""State of a loader's differential probe: which workers take part, and what they have found so far."""

from __future__ import annotations

from typing import Any

from stoker.core.units import format_bytes
from stoker.feed.state.events import Purpose
from stoker.feed.state.in_flight import torchs_batches
from stoker.feed.state.instructions import (
    Instruction,
    Judge,
    Kill,
    LetGoOn,
    Notice,
    Probe,
    Role,
    Spawn,
    Stop,
)
from stoker.feed.state.ledger import Item, Ledger


class ProbeError(Exception):
    """A data worker failed while it compared samples: an error of stoker, with its traceback."""


class Probing:
    """One probe of the first batch of an iteration. Methods return instructions.

    Args:
        declared: workers that the loader declares.
    """

    def __init__(self, declared: int) -> None:
        # Not the worker id of the first batch, so that a dependence on the id shows.
        self._other_id = min(1, max(0, declared - 1))
        self.wanted = False
        """The next leased batch is the one to probe."""
        self.first_drew: bool | None = None
        """Whether that batch drew from the global random streams; None before it is known."""
        self._found: dict[str, Any] = {}
        self._prober = self._maker = -1
        self._item: Item | None = None
        self._other: Item | None = None
        self._is_repeating = self._was_repeated = False
        self.refused = ""
        """Why the samples are not compared, as half a sentence; empty where they are."""
        self.holds_back = False
        """Whether other workers only finish what they have, because samples are large."""
        self.deadline_s: float | None = None
        """When waiting for the evidence ends; None while nobody waits."""

    def start(self) -> None:
        """Requests the probe, with the next lease."""
        self.wanted = True

    def spawn(self) -> list[Instruction]:
        """Starts the throwaway worker, once; second, so that the first batch is not delayed by it."""
        return [Spawn(self._other_id, Purpose.PROBE)] if self.wanted and self._prober < 0 else []

    def accompany(self, item: Item, other: Item | None, maker: int) -> list[Instruction]:
        """Gives the samples of the first batch, leased to ``maker``, to the throwaway worker, too, and ``other``."""
        spawn = self.spawn()
        self.wanted, self._maker, self._item, self._other = False, maker, item, other
        return spawn or self._ask(self._prober, "apart")

    def born(self, worker: int, purpose: Purpose) -> list[Instruction]:
        """Assigns its part to a throwaway worker that was started."""
        if purpose is Purpose.REPEAT:
            self._maker = worker
            return [Spawn(self._other_id, Purpose.PROBE)]
        self._prober = worker
        again: list[Instruction] = []
        if self._is_repeating:
            self._is_repeating = False
            again = [Notice(_REPEATED), *self._ask(self._maker, "beside")]
        return [*again, *self._ask(worker, "apart")]

    def not_born(self) -> None:
        """Records that a throwaway worker could not be started."""
        if self._is_repeating:
            self._is_repeating = False
            self.refused = self.refused or LOST_TWICE

    def repeat(self) -> list[Instruction]:
        """Restarts the probe with two throwaway workers, once; does nothing the second time.

        One death may have nothing to do with the samples; a second one hardly so.
        """
        if self._was_repeated or self._item is None:
            self.refused = self.refused or LOST_TWICE
            return []
        self._was_repeated = self._is_repeating = True
        self.forget()
        return [Spawn(0, Purpose.REPEAT)]

    def forget(self) -> None:
        """Drops the workers, which are gone, and their evidence: the dataset may have changed since."""
        self._prober = self._maker = -1
        self.holds_back = False
        self._found.clear()

    def _ask(self, worker: int, role: Role) -> list[Instruction]:
        if worker < 0 or self._item is None:
            return []
        other = self._other.work if self._other is not None else None
        return [Probe(worker, role, self._item.work, other), Stop(worker)]

    def drew(self, drew: bool) -> None:
        """Records whether the first batch drew random numbers."""
        self.first_drew = drew

    def found(self, role: str, value: Any) -> None:
        """Records what a worker found; raises :class:`ProbeError` if it failed."""
        if role == "failed":
            raise ProbeError(value)
        self._found[role] = value
        self.holds_back = self.holds_back and role != "apart"

    def sized(
        self, worker: int, sample_bytes: int, samples: int, *, workers: int, free_bytes: int
    ) -> tuple[str, list[Instruction]]:
        """Why a throwaway worker that waits with a large sample must stop (empty: it continues), and instructions."""
        why_not = why_not_probed(
            sample_bytes=sample_bytes, batch_bytes=sample_bytes * samples, workers=workers, free_bytes=free_bytes
        )
        if worker != self._prober:
            return why_not, []
        self.refused, self.holds_back = why_not, not why_not
        return why_not, [] if why_not else [LetGoOn(self._maker)]

    def refuse(self, why_not: str) -> None:
        """Cancels the comparison, unless it has its evidence; ``why_not`` is half a sentence."""
        if (self.wanted or self._item is not None) and self.evidence is None:
            self.refused, self.holds_back = why_not, False

    def give_up(self, why_not: str) -> list[Instruction]:
        """Ends the comparison, whatever was found: kills the throwaway worker and lets the other continue."""
        self.wanted = self.holds_back = False
        self.refused = why_not
        self._found.clear()
        return [Kill(self._prober, why_not), LetGoOn(self._maker)]

    def go_on(self, ledger: Ledger) -> list[Instruction]:
        """Lets the throwaway worker continue once no other worker is busy."""
        idle = not any(worker.num_held for worker in ledger.workers.values())
        ready = self.holds_back and idle and "beside" in self._found and self._prober in ledger.workers
        return [LetGoOn(self._prober)] if ready else []

    @property
    def evidence(self) -> tuple[Any, Any] | None:
        """What both sides found; None while one is missing."""
        beside, apart = self._found.get("beside"), self._found.get("apart")
        return (beside, apart) if beside is not None and apart is not None else None

    def hopeless(self, ledger: Ledger) -> bool:
        """Whether one side is gone without having reported."""
        if self.wanted or self._is_repeating:
            return False
        silent_prober = "apart" not in self._found and self._prober not in ledger.workers
        return silent_prober or ("beside" not in self._found and self._maker not in ledger.workers)

    def check(self, ledger: Ledger, now_s: float, timeout_s: float) -> list[Instruction]:
        """The end of a comparison that is waited for: by evidence, loss or deadline; nothing while it runs."""
        if self.deadline_s is None:
            self.deadline_s = now_s + timeout_s
        if self.evidence is not None:
            return [Judge()]
        if self.refused:
            return [Judge(self.refused)]
        if self.hopeless(ledger):
            again = self.repeat()
            self.deadline_s = now_s + timeout_s
            return again or [Judge(self.refused)]
        if now_s > self.deadline_s:
            return [Judge(f"its samples could not be probed within {timeout_s:g} s (`--stall-timeout`)")]
        return []


LOST_TWICE = "data workers were lost twice while its samples were probed"
_REPEATED = "a data worker was lost while samples were probed; they are probed once more"
MOST_PROBED_BYTES = 1 << 26
"""Larger samples are not compared: making and reading them half a dozen times takes seconds."""
_AMPLE = 2.0
"""Free memory that a probe requires, as a multiple of what torch's loader will need: it must not exhaust it."""


def why_not_probed(*, sample_bytes: int, batch_bytes: int, workers: int, free_bytes: int) -> str:
    """Why large samples are not compared, as half a sentence; empty where they are.

    Args:
        sample_bytes: of one sample, or of all that the dataset makes at once.
        batch_bytes: of a batch.
        workers: data workers.
        free_bytes: memory that could be allocated before the first sample was made; 0 when unknown.
    """
    if sample_bytes > MOST_PROBED_BYTES:
        return f"what it makes at once ({format_bytes(sample_bytes)}) is too large to be made again for a comparison"
    if free_bytes and free_bytes < _AMPLE * torchs_batches(workers) * batch_bytes:
        size, free = format_bytes(batch_bytes), format_bytes(free_bytes)
        return f"its batches of {size} are too large to compare samples with {free} of free memory"
    return ""

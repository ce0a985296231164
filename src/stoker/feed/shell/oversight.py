"""Supervision of workers, memory and pace while batches are made. None of it may end the program."""

from __future__ import annotations

from dataclasses import dataclass

from stoker.core.mishaps import BestEffort
from stoker.feed.program import Tier
from stoker.feed.scaling import Decision, Observation, ScalingPolicy
from stoker.feed.shell.crew import Crew
from stoker.feed.shell.memory import MemoryWatch
from stoker.feed.shell.watch import Suspect, Watch
from stoker.feed.state.ledger import Item
from stoker.feed.state.window import Counters, Window
from stoker.feed.transport.board import Departure

WINDOW_S = 0.25
"""Interval between decisions of the policy."""
_MUCH_WAIT = 0.02
"""Input wait from which other machines are asked to load the program, if there are any."""
_TELLING, _TELLING_THEN = "word to other machines", "their processors are divided without it"
COUNTING = "count of what happens", "the number of data workers stays"
"""A part of stoker that may fail, and the consequence."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Bounds on the memory and the silence of a loader's workers."""

    worker_memory_bytes: int
    stall_timeout_s: float
    timeout_s: float = 0.0
    """The loader's own time limit for one batch; 0 for none."""


class Oversight:
    """Supervises one engine's workers and memory, and asks its policy.

    Args:
        watch: detects workers that are stopped or hang.
        memory: limits the items in flight.
        policy: number of workers and depth of each one's queue.
        window: recent differences of the counters.
        counters: of the loader.
        effort: attempts what may fail.
    """

    def __init__(
        self,
        watch: Watch,
        memory: MemoryWatch,
        policy: ScalingPolicy,
        window: Window,
        counters: Counters,
        effort: BestEffort,
    ) -> None:
        self._watch = watch
        self._memory = memory
        self._policy = policy
        self._window = window
        self._counters = counters
        self._effort = effort

    def suspects(self, crew: Crew, now_s: float, holding: set[int]) -> list[Suspect]:
        """Workers that must be replaced."""
        return self._effort.attempt(
            "watch over data workers",
            lambda: self._watch.look(crew, now_s, holding),
            [],
            then="one that hangs is not replaced any more",
        )

    def fit(self, capacity: int, workers: int, tier: Tier, head: Item | None) -> None:
        """Limits the items in flight if batches are large."""
        self._effort.attempt(_MEMORY, lambda: self._memory.fit(capacity, workers, tier, head), None, then=_MEMORY_THEN)

    def is_due(self, now_s: float) -> bool:
        """Whether it is time to observe and to decide."""
        return self._effort.attempt(
            COUNTING[0], lambda: self._window.span_s(now_s) >= WINDOW_S, False, then=COUNTING[1]
        )

    def due_s(self, now_s: float) -> float:
        """When the next look, at workers or at the window, is due."""
        left_s = self._effort.attempt(
            COUNTING[0], lambda: WINDOW_S - self._window.span_s(now_s), WINDOW_S, then=COUNTING[1]
        )
        return min(self._watch.next_s, now_s + left_s)

    def settle(self, now_s: float) -> None:
        """Counts idle time up to the end of the iteration."""
        self._effort.attempt(COUNTING[0], lambda: self._window.settle(now_s), None, then=COUNTING[1])

    def observe(
        self, now_s: float, crew: Crew, depth: int, batch_bytes: int, *, waiting: bool, may_leave: bool
    ) -> Observation | None:
        """The observation since the last call, free memory included; None if counting has failed."""
        memory, counters = self._memory, self._counters
        active = crew.active()
        workers, away = len(active), sum(member.away for member in active)
        self._effort.attempt(
            _MEMORY, lambda: memory.look(now_s, workers, counters.private_bytes), None, then=_MEMORY_THEN
        )
        seen = self._effort.attempt(
            COUNTING[0],
            lambda: self._window.close(
                now_s,
                workers=workers,
                depth=depth,
                batch_bytes=batch_bytes,
                waiting=waiting,
                free_bytes=memory.free_bytes,
                away=away,
                away_room=crew.away_room if may_leave else 0,
                away_limit=crew.away_limit,
            ),
            None,
            then=COUNTING[1],
        )
        if may_leave and seen is not None and seen.input_wait_frac > _MUCH_WAIT:
            self._effort.attempt("call for other machines", crew.prepare_away, None, then="workers stay on this one")
        if may_leave and seen is not None:
            self._effort.attempt(_TELLING, lambda: crew.observed(seen), None, then=_TELLING_THEN)
        return seen

    def cause_of(self, departure: Departure, busy: int) -> str:
        """The cause of a worker's end if it was killed for lack of memory; else empty."""
        return self._effort.attempt(_MEMORY, lambda: self._memory.killed(departure, busy), "", then=_MEMORY_THEN)

    def decide(self, seen: Observation) -> Decision | None:
        """The policy's decision; None if the policy has failed."""
        return self._effort.attempt(
            "choice of the number of workers", lambda: self._policy.decide(seen), None, then="their number stays"
        )


_MEMORY = "watch over memory"
_MEMORY_THEN = "batches in flight are not bounded by it any more"

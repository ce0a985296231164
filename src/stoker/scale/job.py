"""Decides how many data workers one loader has, from the state of its queue: pure, time is in the observations.

The rule is GoldMiner's: the program starves and no worker is blocked: add; workers are blocked and nobody starves:
drain; both: deepen. Single steps by the queue alone would be slow, so conservation of work estimates the number to jump
to. The estimate may overshoot (CPU or a remote store is saturated), so each growth is a trial that must raise the
delivered rate.

Source: GoldMiner (SIGMOD 2023), section on the job scaler; the conservation estimate and the trials are ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from stoker.core.units import format_count
from stoker.feed.scaling import Decision, Observation
from stoker.scale.evidence import View, WindowHistory
from stoker.scale.limits import (
    CPU_MARGIN,
    Footprint,
    JobScalingConfig,
    Limit,
    cpu_limit,
    fitting_depth,
    free_limit,
    hard_limit,
)
from stoker.scale.memory import Memory

LITTLE_WAIT = 0.02
"""Input wait below this is not worth a worker."""
NO_WAIT = 0.01
"""Workers are only taken away while input wait is below this."""
MUCH_WAIT = 0.2
"""Above this input wait a second of evidence is enough; below, it takes several."""
HEAVY_WAIT = 0.5
"""Above this half a second is enough, and a short baseline: each further second costs half a second of steps."""
FIRST_WORKERS = 4
"""Most workers that a loader starts with if it declares none; it gets one per core."""
SURE = 0.15
"""Largest relative error of the needed number of workers at which to jump to it."""
SURE_ENOUGH = 0.35
"""The same if the program mostly waits, for items that hardly use the CPU: a worker too many costs nothing."""
SHORT_BASELINE = 6
"""Batches of a short baseline."""
SPARE = 0.1
"""Spare workers to keep, as a share of the need (one worker at most): costs vary."""
WORTH_IT = 0.03
"""The last worker added must bring this share of the rate."""
LOADING_LOOP_STEP_S = 0.001
"""A program with shorter steps does nothing but load: no rate is sufficient for it."""
SOME_BLOCKED = 0.02
"""Share of time that workers are blocked above which a deeper queue may help."""
CPU_FULL = 0.95
"""Share of the CPU budget from which it counts as used up."""
LITTLE_CPU = 0.1
"""CPU time over wall time of an item: where it is lower, contention for cores cannot be the only cause."""
HARDLY_CPU = 0.05
"""The same below which a few items too many at a time cost nothing."""
PROOF = 0.7
"""Share of the proportional gain that workers beyond the cores must bring before many more are started."""
CPU_BUSY = 0.75
"""Share of cores in use at which more workers than cores may slow each other down; the program uses some too."""


RECEIVE_S_PER_BYTE = 1.1e-9
"""CPU time that this host spends on a byte from another machine: TLS 1.3 received by Python, 1.02 to 1.09 s a GB."""


class CoreShare(Protocol):
    """A loader's share of the process's CPU budget (``stoker.scale.budget.CpuShare``)."""

    def cores(self, demand_cores: float, now_s: float) -> float:
        """Cores this loader may use now, given those it could use."""
        ...


@dataclass(frozen=True)
class WatchedChange:
    """A change on trial, with the delivered rate before it."""

    workers: int
    rate: float
    proof_pace: float | None = None
    """Set for more workers than cores: items per second that prove that items do not only wait for a core."""


@dataclass(frozen=True)
class Search:
    """A search for fewer workers after more did not help: the rate to keep, and a number known to give it."""

    rate: float
    enough: int


class JobAutoscaler:
    """The scaling policy of one loader over all its iterations (a ``ScalingPolicy``).

    Deterministic: the same observations give the same decisions. Not thread-safe.
    """

    def __init__(self, config: JobScalingConfig, share: CoreShare | None = None) -> None:
        self.config = config
        self._share = share
        self._cores = config.cpu_budget_cores
        self._history = WindowHistory()
        self._footprint = Footprint()
        self._free: Limit | None = None
        self._workers = 0
        self._away = 0
        self._away_before = 0
        self._room, self._link = 0, ""
        self._most_near = config.max_workers
        self._depth = 1
        self._reason = ""
        self._iteration = 0
        self._held_steps = 0
        self._held_from_s: float | None = None
        self._held_wait_s = self._held_last_s = 0.0
        self._warm_steps = 0
        self._holding = True
        self._trial: WatchedChange | None = None
        self._search: Search | None = None
        self._memory = Memory()
        self._direction = 0
        self._reversals = 0

    def start(self, declared_workers: int, prefetch_factor: int) -> Decision:
        """The first decision of an iteration: the declared workers, or those that the last iteration ended with.

        A loader that declares none has no baseline to measure: it loaded in the training process.
        """
        self._iteration += 1
        if self._iteration == 1:
            self._depth = max(1, prefetch_factor)
            # The first batch and those in flight at its delivery were made while processes started.
            self._warm_steps = 1 + max(1, declared_workers) * self._depth
            self._holding = declared_workers > 0
            cores = max(1, math.floor(self._cores * CPU_MARGIN))
            wanted = self.config.fixed_workers or declared_workers or min(cores, FIRST_WORKERS)
            self._go(wanted, self._depth, self._hold_reason(declared_workers, wanted), None)
            if self._workers < wanted and self.config.fixed_workers is None:
                limit = hard_limit(self.config, self._footprint, self._depth)
                self._reason = _count(self._workers, limit.reason)
        else:
            self._holding = False
        self._trial = self._search = None
        self._history.restart(self._workers)
        return self._decision()

    def decide(self, observation: Observation) -> Decision:
        """The decision for the time after this window."""
        self._footprint = self._footprint.larger(observation.batch_bytes, observation.worker_bytes)
        self._free = free_limit(observation.workers, observation.free_bytes, self._footprint)
        self._history.observe(observation)
        self._cores = self._allowed_cores(observation)
        self._look_away(observation)
        if not self._hold(observation):
            view = self._history.view()
            if self.config.fixed_workers is not None and not self._room:
                self._fixed(view, observation.now_s)
            elif view is None or not view.items:
                self._blind(observation)
            else:
                self._remember(view, observation.now_s)
                self._act(view, observation.now_s)
        self._fit(observation.now_s)
        return self._decision()

    # Other machines

    @property
    def _near(self) -> int:
        """Workers on this host."""
        return self._workers - self._away

    def _look_away(self, observation: Observation) -> None:
        """Follows the room on other machines: what is lost there is no failure of a trial, and comes back."""
        room = observation.away_room
        self._link = f"{observation.away_limit}: more workers there bring nothing" if observation.away_limit else ""
        is_auto = self.config.fixed_workers is None
        if is_auto and 0.0 < observation.item_cpu_s < RECEIVE_S_PER_BYTE * observation.batch_bytes:
            room = 0  # to receive a batch costs this host more than to make it
        wanted = min(self._away, room) if self.config.fixed_away is None else min(self.config.fixed_away, room)
        if room < self._away:
            self._away_before = max(self._away_before, self._away)
        elif room and self._away < self._away_before:
            wanted, self._away_before = min(self._away_before, room), 0
        self._room = room if self.config.fixed_away is None else 0
        if wanted != self._away:
            there = f"{format_count(wanted, 'worker')} on other machines" if wanted else "none on other machines"
            self._trial = self._search = None
            self._go(self._near + wanted, self._depth, there, observation.now_s, away=wanted)

    def _cores_here(self, view: View) -> float:
        """Cores of this host that its data workers use."""
        return view.cores * self._near / self._workers

    # What is known

    def _hold(self, observation: Observation) -> bool:
        """Whether the first iteration is warming up, or measures its baseline with the declared workers."""
        if not self._holding:
            return False
        if self._held_from_s is None:
            self._held_from_s = self._held_last_s = observation.now_s
        self._held_steps += observation.steps
        self._held_wait_s += observation.input_wait_frac * (observation.now_s - self._held_last_s)
        self._held_last_s = observation.now_s
        late = observation.now_s - self._held_from_s >= self.config.hold_s
        if self._warm_steps and self._held_steps >= self._warm_steps and not late:
            self._held_steps -= self._warm_steps
            self._held_from_s, self._warm_steps = observation.now_s, 0
            self._held_wait_s = 0.0
        held_s = observation.now_s - self._held_from_s
        heavy = not self._warm_steps and self._held_wait_s >= HEAVY_WAIT * held_s > 0.0
        steps = min(SHORT_BASELINE, self.config.hold_steps) if heavy else self.config.hold_steps
        self._holding = not late and (self._warm_steps > 0 or self._held_steps < steps)
        return self._holding

    def _allowed_cores(self, observation: Observation) -> float:
        if self._share is None:
            return self.config.cpu_budget_cores
        whole = self._history.whole()
        demand = 0.0
        if self._history.silent_s < 2.0:
            step_s = whole.step.mean if whole else 0.0
            demand = whole.cpu_s / step_s if whole and step_s > LOADING_LOOP_STEP_S else math.inf
        return min(self.config.cpu_budget_cores, self._share.cores(demand, observation.now_s))

    def _remember(self, view: View, now_s: float) -> None:
        """Records the rate of this number of workers; new conditions void earlier trials."""
        if self._memory.refresh(view, self._workers, self._cores + self._room, now_s):
            self._trial = self._search = None
            self._reversals = 0

    def _set_ceiling(self, workers: int, reason: str, now_s: float) -> None:
        self._memory.set_ceiling(Limit(workers, reason), self._cores + self._room, now_s)

    def _needed(self, view: View) -> tuple[float, float]:
        """Workers that the program needs, and the relative error of that number."""
        error = max(view.wall.error_frac, view.step.error_frac)
        whole = self._history.whole()
        # Not if the program mostly waits: its steps take little time then, and the iteration's start would blur it.
        if error > SURE and view.wait_frac < HEAVY_WAIT and whole is not None and whole.step_s > 0.0:
            all_error = max(whole.wall.error_frac, whole.step.error_frac)
            if all_error < error:
                return whole.wall.mean / whole.step_s, all_error
        return view.needed, error

    def _limit(self, view: View) -> Limit:
        """The lowest ceiling for growth: hard bounds, trials, CPU."""
        limit = hard_limit(self.config, self._footprint, self._depth)
        if self._free is not None and self._free.workers < limit.workers:
            limit = self._free
        ceiling = self._memory.ceiling
        if ceiling is not None and ceiling.limit.workers < limit.workers:
            limit = ceiling.limit
        cpu = self._cpu_ceiling(view)
        return cpu if cpu.workers < limit.workers else limit

    def _cpu_ceiling(self, view: View) -> Limit:
        """The CPU budget's ceiling; while cores are free, a few workers beyond it may be tried.

        One for items that only compute, up to twice as many for items that mostly wait: those collide at random.
        """
        if (fixed := self.config.fixed_workers) is not None:
            self._most_near = fixed
            there = self._link or f"{fixed} here as asked for, and other machines take {self._room}"
            return Limit(fixed + self._room, there)
        workers = cpu_limit(self._cores, view)
        used = self._cores_here(view)
        reason = f"all {self._cores:.1f} cores of the CPU budget are in use"
        if used < CPU_FULL * self._cores:
            reason = f"{used:.1f} of {self._cores:.1f} cores of the CPU budget are in use"
            workers = max(workers, self._near + 1)
            ratio = min(self._memory.wall_per_cpu, 1.0 / max(view.cpu_frac, 1e-6))
            if used >= (0.5 if ratio >= 2.0 else 0.25) * self._cores:
                uncontended = max(1, math.floor(self._cores * CPU_MARGIN * ratio))
                beyond = max(1, math.ceil(uncontended * (1.0 - 1.0 / ratio) - 0.25)) if ratio > 1.0 else 1
                workers = min(workers, uncontended + beyond)
        self._most_near = workers
        if self._room:
            reason = self._link or f"{reason}, and other machines take no more than {self._room}"
        return Limit(workers + self._room, reason)

    # What is done about it: the first rule that applies wins

    def _act(self, view: View, now_s: float) -> None:
        if self._over_cpu(view, now_s) or self._judge(view, now_s) or self._searching(view, now_s):
            return
        if view.wait_frac > LITTLE_WAIT:
            self._starved(view, now_s)
        else:
            self._sufficient(view, now_s)

    def _over_cpu(self, view: View, now_s: float) -> bool:
        """Removes workers if another loader got a share of the budget, or if too many were declared."""
        used = self._cores_here(view)
        over = self.config.fixed_workers is None and used > 1.1 * self._cores
        if not over or not _enough(view, span_s=1.0, items=8):
            return False
        near = max(self.config.min_workers, min(cpu_limit(self._cores, view), self._near - 1))
        if near >= self._near:
            return False
        workers = near + self._away
        self._set_ceiling(workers, f"{self._near} would use {used:.1f} cores of {self._cores:.1f}", now_s)
        self._change(workers, now_s, f"the CPU budget is {self._cores:.1f} cores", away=self._away)
        return True

    def _judge(self, view: View, now_s: float) -> bool:
        """Ends a trial: growth that did not raise the rate is reverted and remembered."""
        trial = self._trial
        if trial is None:
            return False
        items = max(8, 2 * self._workers)
        if not _enough(view, span_s=0.75, items=items):
            return True
        grown = self._workers - trial.workers
        if grown <= 0:  # a smaller budget has undone the growth meanwhile
            self._trial = None
            return False
        gain = view.rate / trial.rate if trial.rate > 0.0 else math.inf
        each = (1.0 - 1.0 / gain) / grown if gain > 0.0 else -1.0
        efficient = self._efficient(view, trial, gain, each)
        span_s = 3.0 if grown == 1 or trial.proof_pace is not None else 1.5
        sure = view.span_s >= span_s and (view.wall.error_frac < 0.03 or view.span_s >= 15.0)
        if not efficient and not sure:
            return True
        self._trial = None
        if efficient or each >= WORTH_IT or view.wait_frac <= LITTLE_WAIT:
            self._memory.raise_floor(trial.workers + 1)
            self._conclude(view, trial, now_s)
            return False
        self._take_back(view, trial, gain, now_s)
        return True

    def _efficient(self, view: View, trial: WatchedChange, gain: float, each: float) -> bool:
        """Whether a trial has plainly succeeded, so that it needs no more evidence."""
        if trial.proof_pace is not None:
            return view.pace >= trial.proof_pace and view.span_s >= 1.5
        least = PROOF if _loading(view) else 0.5
        proportional = gain - 1.0 >= least * (self._workers / trial.workers - 1.0)
        return proportional or (each >= WORTH_IT and gain > 1.1 + 3.0 * view.wall.error_frac)

    def _conclude(self, view: View, trial: WatchedChange, now_s: float) -> None:
        """Decides on further growth after a trial that helped."""
        if trial.proof_pace is None or view.wait_frac <= LITTLE_WAIT:
            return
        self._memory.waits = view.pace >= trial.proof_pace
        if not self._memory.waits:
            self._set_ceiling(self._workers, "more only slow each other down: others use the cores as well", now_s)

    def _take_back(self, view: View, trial: WatchedChange, gain: float, now_s: float) -> None:
        """Shrinks to the number of workers that would give the reached rate without contention."""
        limits = _bottleneck(view, self._cores)
        if self._away:
            limits = self._link or "other machines, or the link to them, give no more"
        reason = f"{self._workers} brought {100 * (gain - 1):+.0f} %; {limits}"
        enough = trial.workers if gain <= 1.0 + WORTH_IT else self._workers
        back = trial.workers
        if self._workers > trial.workers + 1:
            rates = {**self._memory.rates, trial.workers: trial.rate}
            best = max(rate / workers for workers, rate in rates.items())
            back = min(math.ceil(0.99 * max(view.rate, trial.rate) / best), self._workers - 1)
        back = max(back, self._memory.floor)
        self._set_ceiling(back, reason, now_s)
        self._change(back, now_s, reason)
        if back != trial.workers:
            self._search = Search(max(view.rate, trial.rate), max(back, enough))

    def _searching(self, view: View, now_s: float) -> bool:
        """After stepping back: the rate must be kept, else half of the step is undone."""
        search = self._search
        if search is None:
            return self._too_many(view, now_s)
        if not _enough(view, span_s=1.5, items=max(16, 2 * self._workers)):
            return True
        self._search = None
        middle = (self._workers + search.enough + 1) // 2
        kept = view.rate * (1.0 + view.wall.error_frac) >= 0.97 * search.rate or middle <= self._workers
        reason = _bottleneck(view, self._cores)
        self._set_ceiling(self._workers if kept else middle, reason, now_s)
        if kept:
            return False
        self._memory.raise_floor(self._workers + 1)
        self._change(middle, now_s, reason)
        if middle < search.enough:
            self._search = search
        return True

    def _too_many(self, view: View, now_s: float) -> bool:
        """Starts a search when more workers than there are cores keep the CPU busy and fewer were never tried."""
        fewer = max(self.config.min_workers, math.floor(self._cores * CPU_MARGIN))
        busy = not self._away and view.cores >= CPU_BUSY * self._cores and fewer + 1 < self._workers
        if (
            not busy
            or self.config.fixed_workers
            or self._memory.ceiling is not None
            or any(n < self._workers for n in self._memory.rates)
        ):
            return False
        if not _enough(view, span_s=1.5, items=2 * self._workers):
            return True
        rate, workers = view.rate, self._workers
        self._change(fewer, now_s, f"{view.cores:.1f} of {self._cores:.1f} cores are in use; trying fewer workers")
        self._search = Search(rate, workers)
        return True

    def _starved(self, view: View, now_s: float) -> None:
        """The program waits: more workers when they are all busy, deeper queues when some were blocked meanwhile."""
        needed, error = self._needed(view)
        loading = _loading(view)
        much = view.wait_frac >= MUCH_WAIT
        span_s, items = (0.7, max(4, self._workers)) if much else (3.0, max(32, 4 * self._workers))
        cheap = view.wait_frac >= HEAVY_WAIT and view.cpu_frac < HARDLY_CPU
        sure = error < (SURE_ENOUGH if cheap else SURE)
        if view.wait_frac >= HEAVY_WAIT and sure:
            span_s = 0.45
        patience = self._patience(1)
        if not _enough(view, span_s=span_s * patience, items=items * patience):
            return
        short = loading or needed * (1.0 - (0.0 if much else error)) * (1.0 - LITTLE_WAIT) > self._workers
        if short and view.blocked_frac <= 0.5:
            self._grow(view, self._goal(needed, loading, sure=sure), loading, now_s)
        elif view.blocked_frac > 0.0 and self._deepen(now_s):
            return
        elif self._may_hedge(view, needed, error):
            self._grow(view, self._workers + 1, loading, now_s)
        else:
            wait = f"input wait is {100 * view.input_wait_frac:.0f} %"
            self._reason = _count(self._workers, f"batch times vary; {wait}")

    def _may_hedge(self, view: View, needed: float, error: float) -> bool:
        """Whether to exceed the mean need by a worker because items vary: after long evidence, up to 1.5 times it."""
        lasting = view.wait_frac > 0.05 and error < 0.1 and view.span_s >= 10.0
        return lasting and self._memory.ceiling is None and self._workers < 1.5 * needed

    def _patience(self, direction: int) -> int:
        """How many times the usual evidence a change needs: twice as much for each earlier change of mind."""
        return 2 ** min(self._reversals, 3) if direction != self._direction else 1

    def _goal(self, needed: float, loading: bool, *, sure: bool) -> int:
        """The number to grow to: the model's if it is well known, else at most twice as many."""
        if loading:
            most = math.floor(1.0 / WORTH_IT)
            return min(2 * self._workers, most) if 1.1 * self._workers < most else self._workers
        goal = math.ceil(min(needed * (1.0 - LITTLE_WAIT), 1e6))
        return max(self._workers + 1, goal if sure else min(goal, 2 * self._workers))

    def _grow(self, view: View, goal: int, loading: bool, now_s: float) -> None:
        limit = self._limit(view)
        workers, proof = self._careful(view, min(goal, limit.workers))
        if workers > self._workers:
            reason = f"input wait is {100 * view.input_wait_frac:.0f} %"
            if view.cpu_frac < 0.5:
                reason += f" and items mostly wait ({100 * view.cpu_frac:.0f} % CPU)"
            expected = view.pace * (1.0 + PROOF * (workers / self._workers - 1.0))
            trial = WatchedChange(self._workers, view.rate, expected if proof else None)
            self._change(workers, now_s, reason)
            self._trial = trial
        elif loading and goal <= self._workers and limit.workers > self._workers:
            self._reason = _count(self._workers, f"one more would bring less than {100 * WORTH_IT:.0f} %")
        elif view.blocked_frac <= SOME_BLOCKED or not self._deepen(now_s):
            self._reason = _count(self._workers, limit.reason)

    def _careful(self, view: View, workers: int) -> tuple[int, bool]:
        """The number to grow to first, and whether that must prove that items wait.

        On a machine that others use, items take longer and look as if they waited for something else. Before a jump
        to more workers than cores, a small one must raise the rate nearly in proportion.
        """
        cores = max(1, math.floor(self._cores * CPU_MARGIN)) + self._room
        unclear = view.stall_s is None and view.cpu_frac >= LITTLE_CPU and not self._memory.waits
        if not unclear or workers <= cores:
            return workers, False
        if self._workers < cores:
            return cores, False
        return min(workers, math.ceil(1.5 * self._workers)), True

    def _deepen(self, now_s: float) -> bool:
        """Doubles the queue of each worker if possible: a slow item then holds up fewer others."""
        depth = fitting_depth(self.config, self._footprint, self._workers, 2 * self._depth)
        if depth <= self._depth:
            return False
        change = (
            f"{format_count(self._workers, 'worker')} as before, with up to {depth} batches ahead for each "
            f"instead of {self._depth}"
        )
        why = "batch times vary, and a longer queue bridges the slow ones"
        self._go(self._workers, depth, f"{change}: {why}", now_s)
        return True

    def _sufficient(self, view: View, now_s: float) -> None:
        """The program does not wait: release workers that are not needed, and give the reason."""
        if _enough(view, span_s=1.0, items=8):
            self._reason = _enough_words(self._workers, view)
        if view.wait_frac > NO_WAIT or view.blocked_frac <= 0.0 or view.windows < 10:
            return
        patience = self._patience(-1)
        if not _enough(view, span_s=3.0 * patience, items=16 * patience):
            return
        needed, error = self._needed(view)
        high = needed * (1.0 + 2.0 * error)
        workers = min(math.ceil(high * (1.0 + SPARE)), math.ceil(high - 1e-3) + 1)
        workers = max(workers, self._memory.floor, self.config.min_workers)
        if workers < self._workers:
            reason = f"enough; {self._workers} were idle {100 * view.blocked_frac:.0f} % of the time"
            self._change(workers, now_s, reason)

    def _fixed(self, view: View | None, now_s: float) -> None:
        """The number of workers is the user's; only the depth follows the queue."""
        self._reason = _count(self._workers, "as asked for")
        if view is None or not _enough(view, span_s=3.0, items=max(32, 4 * self._workers)):
            return
        if view.wait_frac > LITTLE_WAIT and view.blocked_frac > SOME_BLOCKED and view.needed < self._workers:
            self._deepen(now_s)

    def _blind(self, observation: Observation) -> None:
        """Nothing was produced since the hold ended: the first items take long; use the cores there are."""
        goal = min(2 * self._workers, math.floor(self._cores))
        nothing = self._history.whole() is None or not observation.items
        unknown = self._iteration == 1 and nothing and not self._memory.known and self.config.fixed_workers is None
        if unknown and observation.waiting and goal > self._workers:
            self._go(goal, self._depth, _count(goal, "no item has been finished yet"), observation.now_s)

    # Acting

    def _change(self, workers: int, now_s: float, why: str, away: int | None = None) -> None:
        direction = 1 if workers > self._workers else -1
        self._reversals += direction == -self._direction
        self._direction = direction
        self._trial = self._search = None
        self._go(workers, self._depth, _count(workers, why), now_s, away)

    def _fit(self, now_s: float) -> None:
        """Keeps the hard bounds at all times, also when sizes become known late."""
        depth = fitting_depth(self.config, self._footprint, self._workers, self._depth)
        limit = hard_limit(self.config, self._footprint, depth)
        if self.config.fixed_workers is None and self._workers > limit.workers:
            self._go(limit.workers, self._depth, _count(limit.workers, limit.reason), now_s)
        elif depth < self._depth:
            self._go(self._workers, depth, self._reason, now_s)

    def _go(self, workers: int, depth: int, reason: str, now_s: float | None, away: int | None = None) -> None:
        if self.config.fixed_workers is None:
            limit = hard_limit(self.config, self._footprint, depth).workers
            workers = min(max(workers, self.config.min_workers), limit)
        else:
            workers = max(workers, self.config.fixed_workers)
            away = workers - self.config.fixed_workers
        if away is None:  # the first to come are near, the first to go are away
            away = max(0, self._away + workers - self._workers)
            if workers > self._workers:
                away = min(max(self._away, workers - max(self._near, self._most_near)), max(self._room, self._away))
        self._away = max(0, min(away, workers - 1))
        self._workers = workers
        self._depth = fitting_depth(self.config, self._footprint, workers, depth)
        self._reason = reason
        self._history.expect(workers, now_s)

    def _decision(self) -> Decision:
        return Decision(workers=self._workers, depth=self._depth, reason=self._reason, away=self._away)

    def _hold_reason(self, declared: int, wanted: int) -> str:
        if self.config.fixed_workers is not None:
            return _count(wanted, "as asked for")
        if not declared:
            return _count(wanted, "at first, none is declared")
        return _count(wanted, f"as declared: the baseline is measured over {self.config.hold_steps} batches")


def _enough(view: View, *, span_s: float, items: int) -> bool:
    """Whether there is evidence to act: that long and that many items, or four times as long and a few."""
    return view.span_s >= span_s and (view.items >= items or (view.span_s >= 4.0 * span_s and view.items >= 4))


def _loading(view: View) -> bool:
    return view.step.mean < LOADING_LOOP_STEP_S


def _bottleneck(view: View, cores: float) -> str:
    if view.cores >= 0.75 * cores:
        return f"{view.cores:.1f} of {cores:.1f} cores are in use"
    return f"the resource that items wait for is saturated ({100 * view.cpu_frac:.0f} % CPU)"


def _enough_words(workers: int, view: View) -> str:
    """The reason why more workers would not help, with the whole input wait."""
    if view.input_wait_frac <= LITTLE_WAIT:
        keep = "keeps" if workers == 1 else "keep"
        return f"{format_count(workers, 'worker')} {keep} input wait under {1 if view.input_wait_frac <= 0.01 else 2} %"
    why = f"input wait of {100 * view.input_wait_frac:.0f} % is the handing over of batches that are made in time"
    return _count(workers, why)


def _count(number: int, why: str) -> str:
    return f"{format_count(number, 'worker')}: {why}"

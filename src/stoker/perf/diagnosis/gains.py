"""What an action would gain on a step: bounds from the measured parts, in time and money."""

from __future__ import annotations

from stoker.records.profile import Gain, LoaderFacts, Usage

NOT_BOUND = 0.05
"""Share of input wait below which a step does not count as input-bound; data workers are scaled to reach it."""
SHARED_CORES = 0.65
"""Worst-case share of real CPU time in that of apparently full cores: two hardware threads of one core do about 1.3
times the work of one, and virtual machines hide that their cores are such threads."""

_NOISE_CORES = 0.15
"""Cores that a machine's own services use; less use by others is ignored."""
_LEAST_CORES = 0.01


def gain_of(
    now_s: float,
    best_s: float,
    worst_s: float,
    basis: str,
    price_per_hour: float | None,
    expected_s: float | None = None,
) -> Gain:
    """The gain from the current step to one between two bounds.

    Args:
        now_s: of a step.
        best_s: of a step after the action, at best.
        worst_s: at worst; no action makes a step longer here.
        basis: what the bounds are based on, as a sentence.
        price_per_hour: of all that the program runs on; None if not known.
        expected_s: most likely; by default the middle.
    """
    best_s = min(max(best_s, 0.0), now_s)
    worst_s = min(max(worst_s, best_s), now_s)
    seconds = min(max(expected_s, best_s), worst_s) if expected_s is not None else (best_s + worst_s) / 2

    def saved(after_s: float) -> float:
        return 1 - after_s / now_s if now_s > 0 else 0.0

    def money(after_s: float) -> float | None:
        return saved(after_s) * price_per_hour if price_per_hour is not None else None

    return Gain(
        seconds=seconds, low=best_s, high=worst_s, basis=basis,
        saved_frac=saved(seconds), saved_frac_low=saved(worst_s), saved_frac_high=saved(best_s),
        price_per_hour=price_per_hour, saved_per_hour=money(seconds), saved_per_hour_low=money(worst_s),
        saved_per_hour_high=money(best_s),
    )  # fmt: skip


def input_bounds(
    now_s: float,
    wait_s: float,
    wait_cpu_s: float,
    usage: Usage,
    loader: LoaderFacts | None,
    *,
    cores: float,
    threads: int,
) -> tuple[float, float]:
    """Seconds of a step whose batches are made by as many data workers as help: at best, and at worst.

    At best there is no wait, so the gain is at most 1 / (1 - share of the wait). Cores bound it: training and making
    batches take as much processor time as now. At worst the wait stays at the share that does not count, and full cores
    are slower than cores with room.

    Cores that other processes hold are not available: at best data workers get half of them, as the scheduler divides
    cores among runnable processes; at worst the program gets no more than it has now, and everything waits for a core
    as long as it does now.

    Args:
        now_s: of a step.
        wait_s: of it, waiting for batches.
        wait_cpu_s: processor time of the training thread meanwhile.
        usage: processor time a step.
        loader: of the batches.
        cores: of this rank.
        threads: that torch computes with.
    """
    in_process = loader is None or loader.workers == 0
    making_s = wait_cpu_s if in_process else usage.children_s
    rest_s = now_s - wait_s
    # OpenMP threads spin for a while when there is nothing to compute, which takes processor time that nothing needs.
    training_s = min(max(0.0, usage.process_s - (wait_cpu_s if in_process else 0.0)), rest_s * max(1, threads))
    used_s = usage.process_s + usage.children_s
    free = cores - cores_of_others(usage, now_s)
    best_s = max(rest_s, (training_s + making_s) / max(free, cores / 2))
    least = max(free, min(cores, used_s / now_s if now_s > 0 else 0.0), _LEAST_CORES)
    late = 1 + usage.delayed_s / used_s if free < cores and used_s > 0 else 1.0
    worst_s = max(rest_s / (1 - NOT_BOUND), (training_s + making_s) / (SHARED_CORES * least)) * late
    return min(best_s, now_s), min(worst_s, now_s)


def cores_of_others(usage: Usage, now_s: float) -> float:
    """Cores that other processes hold, in the mean of a step; 0 if they are too few to count."""
    held = usage.others_s / now_s if now_s > 0 else 0.0
    return held if held >= _NOISE_CORES else 0.0

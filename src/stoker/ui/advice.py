"""What limits a job at the end of its run, and the next command that helps. Pure rules over measured shares."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from itertools import pairwise

import msgspec

from stoker.core.units import format_count, format_seconds
from stoker.ui.figures import write_percent
from stoker.ui.windows import RecordedWindow

INPUT_FRAC = 0.1
"""From this share of the step time on, input wait is the limit: below it, removing it gains less than that."""
SEEDED = "--random sample"
"""The setting that a tier's reason names where random numbers alone keep a loader from more workers."""
_WORTH_GAIN = 1.05
CORES_FULL_FRAC = 0.85
"""Workers that use this share of the cores leave no room for another: the program needs some as well."""
WAITING_CPU_FRAC = 0.5
"""Work items with less CPU time than this per wall time wait for most of it: on storage, or for a core."""
DEFAULT_MAX_WORKERS = 64
"""Where growth stops unless `max-workers` says otherwise."""
IDLE_FRAC = 0.3
"""With workers idle for this share of their time, workers are not the bottleneck."""
READY_FRAC = 0.7
"""A program that finds its batch made at this share of its requests does not wait for slow items."""
HANDOVER_FRAC = 0.5
"""From this share of the input wait on, the program waits for the hand-over of batches."""
HANDOVER_S = 0.001
"""A shorter wait for each batch is what handing it over takes, not making it."""
NO_BATCH = "no batch was recorded"
"""Why a loader has no figures whose iterations ended before their first batch."""


class LimitingResource(msgspec.Struct, frozen=True, kw_only=True):
    """The resource that limits the job."""

    kind: str
    """``input-tier``, ``input-cpu``, ``input-storage``, ``input-order``, ``input-handover``, ``input-workers``,
    ``input-growing``,
    ``compute``, ``copy``, ``other``, ``unknown`` or ``none``."""
    text: str
    """One sentence with the figures that show it."""


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """The next useful command."""

    command: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Situation:
    """Input of the rules."""

    program: list[str]
    run: str
    """The run folder, as a person would type it; empty where the records lie in none."""
    cores: float
    """Cores for this rank."""
    config: dict[str, object]
    tier: str
    """Tier of the main loader; empty where the program used none."""
    reason: str
    window: RecordedWindow | None
    """The main loader at the end of the run."""
    window_missing: str
    growing: bool
    """Workers were added too late for the window to show it."""
    settled: str = ""
    """The policy's last reason for the number of workers."""


def find_limit(situation: Situation) -> LimitingResource:
    """Names the limiting resource, or says why it cannot be named."""
    if not situation.tier:
        return LimitingResource(kind="none", text="no DataLoader of torch was used, so there was nothing to feed")
    window = situation.window
    if window is None:
        return LimitingResource(kind="unknown", text=situation.window_missing or NO_BATCH)
    if window.split.input_wait_frac < INPUT_FRAC:
        return _program_limit(window)
    return _input_limit(situation, window)


def advise(situation: Situation, limit: LimitingResource) -> Advice:
    """The next command for a limit."""
    if not situation.program:
        return _as_typed_in(_advise(situation, limit, "", shlex.quote(situation.run)), situation)
    program = shlex.join(situation.program)
    advice = _advise(situation, limit, program, shlex.quote(situation.run))
    if not situation.run and advice.command.startswith(("stoker report", "stoker explain")):
        return Advice(command=f"stoker run --run-dir FOLDER {program}", why="keeps the records, for plots over time")
    return advice


def _as_typed_in(advice: Advice, situation: Situation) -> Advice:
    """The same for a program that no command can start: its next command is a line of a notebook."""
    tool, name, *words = shlex.split(advice.command)
    if name == "run":
        options = ", ".join(_keyword(word, following) for word, following in pairwise([*words, ""]) if word[:2] == "--")
        return Advice(command=f"with stoker.feeding({options}):", why=advice.why)
    if name == "explain":
        return Advice(command="stoker.explain(loader)", why=advice.why)
    if name == "report" and not situation.run:
        return Advice(command='with stoker.feeding(run_dir="FOLDER"):', why="keeps the records, for plots over time")
    return Advice(command=f"!{shlex.join([tool, name, *words])}", why=advice.why)


def _keyword(option: str, following: str) -> str:
    """An option of a command as an argument of ``stoker.feeding``."""
    values = {"": "True", "auto": "None"}
    return f"{option[2:].replace('-', '_')}={values.get(following, following)}"


def _advise(situation: Situation, limit: LimitingResource, program: str, run: str) -> Advice:
    match limit.kind:
        case "none" if situation.config.get("comm", "off") != "off" and situation.run:
            return Advice(command=f"stoker exchange {run}", why="how gradients were exchanged, and why so")
        case "none" if situation.config.get("fit", "off") != "off" and situation.run:
            return Advice(command=f"stoker explain {run}", why="what made the program fit, and what was not taken")
        case "none":
            return Advice(command="stoker doctor", why="checks that stoker and torch find each other")
        case "unknown" if situation.window_missing == NO_BATCH:
            return Advice(command=f"stoker run --off {program}", why="the same program with its loaders left to torch")
        case "unknown":
            return Advice(command=f"stoker run {program}", why="a longer run shows where the time goes")
        case "input-tier":
            return _advise_tier(situation, program, run)
        case "input-cpu":
            return _advise_cpu(situation, program)
        case "input-storage" | "input-workers":
            return _advise_workers(situation, program, run)
        case "input-growing":
            return Advice(command=f"stoker run {program}", why="a longer run settles the number of workers")
        case _:
            return Advice(command=f"stoker report {run} --html report.html", why="the same over time, with plots")


def _program_limit(window: RecordedWindow) -> LimitingResource:
    """Input is not the limit: names the largest of the program's own parts."""
    split = window.split
    kinds = {"copy": split.h2d_frac, "compute": split.compute_frac, "other": split.other_frac}
    kind = max(kinds, key=lambda name: kinds[name])
    share = write_percent(kinds[kind])
    text = {
        "compute": f"compute: the model's own steps take {share} of the time",
        "copy": f"copies to the accelerator take {share} of the time",
        "other": f"the rest of the program's loop (logging, metrics, checkpoints) takes {share} of the time",
    }[kind]
    served = f"{format_count(window.workers, 'worker')} keep" if window.workers != 1 else "1 worker keeps"
    waiting = f"input wait at {write_percent(split.input_wait_frac)}"
    return LimitingResource(kind=kind, text=f"{text}; {served} {waiting}" if window.workers else f"{text}; {waiting}")


def _input_limit(situation: Situation, window: RecordedWindow) -> LimitingResource:
    """Input is the limit: names the bottleneck of the data workers."""
    share = write_percent(window.split.input_wait_frac)
    workers = format_count(window.workers, "worker")
    verb = "is" if window.workers == 1 else "are"
    waits = f"the program waits for batches {share} of the time"
    if situation.tier not in {"elastic", "pinned"}:
        place = "torch's own workers" if situation.tier == "stock" else "the training process"
        return LimitingResource(kind="input-tier", text=f"input: {waits}; batches are made in {place}")
    if situation.growing:
        return LimitingResource(
            kind="input-growing", text=f"input: {waits}; workers were still being added when the run ended"
        )
    if (handover := _handover_s(window)) is not None:
        text = f"input: {waits}, not for items, but for the hand-over of each batch ({format_seconds(handover)})"
        hint = "; larger batches cost less" if handover < HANDOVER_S else ""
        return LimitingResource(kind="input-handover", text=text + hint)
    if window.cores_used >= CORES_FULL_FRAC * _budget(situation):
        used = f"{window.cores_used:.1f} of {_budget(situation):g} cores"
        return LimitingResource(kind="input-cpu", text=f"input: {waits}; the CPU is used up ({used}) with {workers}")
    if situation.tier == "pinned":
        return LimitingResource(kind="input-tier", text=f"input: {waits}; the loader is pinned to its {workers}")
    if window.worker_busy_frac is not None and window.worker_busy_frac < 1 - IDLE_FRAC:
        idle = write_percent(1 - window.worker_busy_frac)
        each_s = window.split.input_wait_frac * window.active_s / window.batches
        if window.starved_frac < 1 - READY_FRAC or each_s < HANDOVER_S:
            text = (
                f"input: {waits} though workers are idle {idle} of theirs: not for items, but for the hand-over "
                f"of each batch ({format_seconds(each_s)}); larger batches cost less"
            )
            return LimitingResource(kind="input-handover", text=text)
        text = (
            f"input: {waits} though workers are idle {idle} of theirs: single slow items delay the batches after them"
        )
        return LimitingResource(kind="input-order", text=text)
    if window.worker_cpu_frac is not None and window.worker_cpu_frac < WAITING_CPU_FRAC:
        used = write_percent(window.worker_cpu_frac)
        text = f"input: {waits}; an item uses the CPU for {used} of its time: it waits for storage, or for busy cores"
        return LimitingResource(kind="input-storage", text=text)
    used = f"{window.cores_used:.1f} of {_budget(situation):g} cores"
    settled = f" ({situation.settled})" if situation.settled else ""
    return LimitingResource(kind="input-workers", text=f"input: {waits}; {workers} {verb} busy, on {used}{settled}")


def _handover_s(window: RecordedWindow) -> float | None:
    """Time of one hand-over, if the program waits for that and not for items."""
    share = window.handover_frac
    if share is None or share < HANDOVER_FRAC * window.split.input_wait_frac:
        return None
    return share * window.active_s / window.batches


def _advise_tier(situation: Situation, program: str, run: str) -> Advice:
    gain = _gain_by_workers(situation)
    if SEEDED in situation.reason and gain >= _WORTH_GAIN:
        why = f"a seed for each sample lets more workers make them: up to {gain:.1f}x as fast, by cores and input wait"
        return Advice(command=f"stoker run {SEEDED} {program}", why=why)
    return Advice(command=f"stoker explain {run}", why="shows why this loader gets no more workers")


def _gain_by_workers(situation: Situation) -> float:
    """How many times as fast the program can be at most with more workers.

    Without input wait its own time is left; and workers need the CPU that they use now for each item, or, where the
    training process makes the batches, the time for which it waits for them.
    """
    window = situation.window
    if window is None:
        return 1.0
    wait = window.split.input_wait_frac
    used = window.cores_used if window.workers else wait
    by_cores = _budget(situation) / max(used, 1e-9)
    return max(1.0, min(1.0 / max(1.0 - wait, 1e-9), by_cores, DEFAULT_MAX_WORKERS / max(1, window.workers)))


def _advise_cpu(situation: Situation, program: str) -> Advice:
    if _budget(situation) < situation.cores:
        return Advice(
            command=f"stoker run --cpu-budget {situation.cores:g} {program}",
            why="the CPU budget is below the cores of this machine",
        )
    return Advice(command="stoker doctor", why="shows the cores stoker may use; beyond them only cheaper items help")


def _advise_workers(situation: Situation, program: str, run: str) -> Advice:
    """More workers, if a setting limits their number; else the history of trials."""
    workers = situation.window.workers if situation.window else 1
    for name in ("workers", "max_workers"):
        most = situation.config.get(name)
        if isinstance(most, int) and workers >= most:
            option = "--workers auto" if name == "workers" else f"--max-workers {2 * max(1, most)}"
            return Advice(command=f"stoker run {option} {program}", why="lets the number of workers grow further")
    if workers >= DEFAULT_MAX_WORKERS:
        return Advice(
            command=f"stoker run --max-workers {2 * workers} {program}", why="lets the number of workers grow further"
        )
    return Advice(
        command=f"stoker report {run} --html report.html", why="the workers over time: what was tried, and why"
    )


def _budget(situation: Situation) -> float:
    """Cores that data workers may use."""
    budget = situation.config.get("cpu_budget")
    if isinstance(budget, int | float) and not isinstance(budget, bool) and 0 < budget < situation.cores:
        return float(budget)
    return max(situation.cores, 0.1)

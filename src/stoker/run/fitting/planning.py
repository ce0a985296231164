"""What `stoker run --fit` decides before the program starts: it is traced, a plan is chosen, and certified.

What differs for several ranks is planned in ``rank_planning``.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import msgspec.structs

from stoker.core.errors import ConfigError, FitError, TracingError
from stoker.core.extras import require_in_child
from stoker.core.saying import say
from stoker.core.texts import to_json
from stoker.perf.features.child_process import children_are_forks
from stoker.perf.memory.choice.certifying import CertifiedChoice, RefusedPlan
from stoker.perf.memory.choice.fitting import FitQuestion, taken_of
from stoker.perf.memory.ranks import chosen
from stoker.perf.memory.reserve import replays_forgotten
from stoker.records.fitting import FitMeasure, FitPlan, RejectedFit
from stoker.run.fitting.advising import advised
from stoker.run.fitting.devices import FitDevice, device_of
from stoker.run.fitting.handing import FROM_FIRST, RANKED, assumed_link
from stoker.run.fitting.kept_traces import default_folder
from stoker.run.fitting.pricing import host_link, on_device, priced
from stoker.run.fitting.rank_planning import place_of, plans_of
from stoker.run.fitting.tracing import Certified, trace, trace_plan
from stoker.run.settings import RunSettings
from stoker.ui.fitting.words import write_advice_lines, write_plan

_CHUNKS = ((2, False), (4, False), (4, True), (8, True), (16, True))
"""Parts of a batch that are tried, and whether units are repeated as well."""


@replays_forgotten()
@children_are_forks()
def prepare(
    settings: RunSettings, program: Sequence[str], begins: Callable[[], object] = lambda: None
) -> tuple[FitPlan | None, str]:
    """Plans, says the plan in one line, and returns it with the file that hands it to the program's processes.

    Of a program of several ranks the first one plans; the others have no plan yet, and no file. ``begins`` is called
    if the program is traced now, as no trace is kept.

    Raises:
        ConfigError: there is no budget, or the ranks of the program are not known.
        TracingError: the program cannot be traced.
        FitError: nothing fits the budget.
    """
    require_in_child("torch", extra="torch")
    place = place_of(os.environ, program)
    if place is not None and not place.is_first:
        return None, FROM_FIRST
    device = device_of(settings.fitting.device_memory_bytes)
    if place is None:
        plan = plan_of(program, device, begins)
        file = _handed(to_json(plan), ".json")
    else:
        plans = plans_of(place, device, begins)
        plan = chosen(plans, assumed_link(), "gloo" if device.emulated else "nccl")
        file = _handed(to_json(plans), RANKED)
    says = [] if settings.report.quiet else write_advice_lines(plan)
    if not plan.fits and settings.fitting.fit == "auto":
        for line in says:
            say(f"fit: {line}")
        raise FitError(f"`--device-memory` must have room for a step of the program: {write_plan(plan)}")
    if place is None and not settings.report.quiet:
        for line in (write_plan(plan), *says):
            say(f"fit: {line}")
    return plan, str(file)


def plan_of(program: Sequence[str], device: FitDevice, begins: Callable[[], object] = lambda: None) -> FitPlan:
    """The certified plan of a program of one process; the nearest miss where nothing fits.

    Raises:
        TracingError: the program cannot be traced.
    """
    name = program[1] if program[0] == "-m" and len(program) > 1 else program[0]
    traced = trace(program, device.target, begins=begins)
    question = FitQuestion(
        name=os.path.basename(name), features=traced.features,
        timeline=priced(traced.features, traced.timeline, device),
        model=traced.model, budget=device.budget, device=device.name, emulated=device.emulated, link=host_link(device),
        host_is_last=device.emulated,
    )  # fmt: skip
    return certified_plan(program, device, question)


def certified_plan(program: Sequence[str], device: FitDevice, question: FitQuestion) -> FitPlan:
    """The plan for a traced program, traced again in its form, with advice; the nearest miss where nothing fits."""
    tracing = _PlanTraces(program, device)
    choice = CertifiedChoice(question, tracing.certified)
    plan = choice.plan()
    if not plan.fits:
        plan = tracing.in_chunks(choice.question, plan)
    return advised(program, device, question, plan)


@dataclass(frozen=True, slots=True)
class _PlanTraces:
    """Plans that are traced in their form."""

    program: Sequence[str]
    device: FitDevice

    def certified(self, question: FitQuestion, plan: FitPlan) -> FitPlan | RefusedPlan:
        """The plan with the peak of its own trace, or why it could not be applied."""
        try:
            found = trace_plan(self.program, self.device.target, plan)
        except TracingError as error:
            return _refused(question, plan, f"the program does not run with it: {error}")
        if found.left:
            kinds = {each.kind for each in plan.measures}
            return RefusedPlan(
                barred={name: reason for name, reason in found.left.items() if name in kinds},
                without={name: reason for name, reason in found.left.items() if name not in kinds},
            )
        return self._certified(plan, found)

    def in_chunks(self, question: FitQuestion, nearest: FitPlan) -> FitPlan:
        """The fewest parts of a batch with which it fits, on top of the nearest miss; else the nearest of all.

        The parts' gradients are added in another order, so it is asked last.
        """
        model = question.model
        reason = model.not_cut or ("the program compiles it" if model.compiled else "")
        reason = reason or question.barred.get("chunks", "")
        if not reason:
            others = tuple(each for each in nearest.measures if each.kind != "recompute")
            for number, repeats in _CHUNKS:
                plan = _cut(question, nearest, nearest.measures if repeats else others, number)
                try:
                    found = trace_plan(self.program, self.device.target, plan)
                except TracingError as error:
                    reason = f"the model's output has no parts: {error}"
                    break
                certified = self._certified(plan, found)
                if certified.fits:
                    return certified
                nearest = min(nearest, certified, key=lambda each: each.peak_bytes)
            else:
                return nearest
        rejected = RejectedFit(name="chunks of samples", peak_bytes=None, step_s=None, reason=reason)
        return msgspec.structs.replace(nearest, rejected=(*nearest.rejected, rejected))

    def _certified(self, plan: FitPlan, found: Certified) -> FitPlan:
        timeline = on_device(found.timeline, self.device)
        peak = taken_of(
            timeline, emulated=self.device.emulated, expandable=bool(plan.of("expandable")),
            available=self.device.budget,
        )  # fmt: skip
        return msgspec.structs.replace(
            plan, peak_bytes=peak, lacks_bytes=max(0, peak - self.device.budget), certified=True
        )


def _refused(question: FitQuestion, plan: FitPlan, reason: str) -> RefusedPlan:
    """The next plan does without the kind that does most to the program."""
    keeps_products = any(each.keeps == "products" for each in plan.of("recompute"))
    kinds = {
        "offload": bool(plan.of("offload")), "states_away": bool(plan.of("states_away")),
        "products": keeps_products, "used_up": bool(plan.of("used_up")), "recompute": bool(plan.of("recompute")),
        "one_by_one": True,
    }  # fmt: skip
    first = next((kind for kind, is_in in kinds.items() if is_in and kind not in question.barred), "expandable")
    return RefusedPlan(barred={first: reason})


def _cut(question: FitQuestion, nearest: FitPlan, measures: tuple[FitMeasure, ...], number: int) -> FitPlan:
    """A plan with the model called on parts, whose forward passes are all repeated."""
    again = sum(call.seconds for call in question.timeline.calls if call.phase == "forward")
    measure = FitMeasure(kind="chunks", number=number, added_s=again, promise="within 1e-6")
    before = sum(each.added_s or 0.0 for each in measures)
    step_s = None if nearest.plain_step_s is None else nearest.plain_step_s + before + again
    return msgspec.structs.replace(nearest, measures=(*measures, measure), step_s=step_s, lacks_bytes=0)


def _handed(content: bytes, suffix: str) -> Path:
    """A file with a plan, named by its content, for all processes of the program."""
    name = f"{sha256(content).hexdigest()[:24]}{suffix}"
    for folder in (default_folder() / "plans", Path(tempfile.gettempdir(), f"stoker-fits-{os.getuid()}")):
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            part = folder / f"{name}.{os.getpid()}.part"
            part.write_bytes(content)
            part.replace(folder / name)
        except OSError:  # the next place will do
            continue
        return folder / name
    raise ConfigError(f"`{default_folder()}` must be a folder that can be written; name another by XDG_CACHE_HOME")

"""The verdict on a measured step: what limits it, the figures that show it, one next action and what it would buy.

Thresholds are those of the tools that people know. XProf: input below 5 % of the step is no limit, up to 20 % moderate,
above that high; launching and other: 3 and 15 %; all-reduce from 6 %. torch-tb-profiler: loader from 5 %, communication
from 10 %. Stragglers: slowest over mean of the ranks; ordinary jobs of Alibaba-PAI have 1.09 to 1.12 in the median.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec

from stoker.core.units import format_count, format_seconds
from stoker.perf.diagnosis.exchanged import spared_exchange
from stoker.perf.diagnosis.gains import NOT_BOUND, cores_of_others, gain_of, input_bounds
from stoker.perf.features.records import MATRIX_KINDS, StepFeatures
from stoker.records.profile import Action, Gain, Predicted, Profile, Verdict

INPUT_LEVELS = (NOT_BOUND, 0.20)
COMMUNICATION_LEVELS = (0.06, 0.10)
HOST_LEVELS = (0.03, 0.15)
STRAGGLER_RATIO = 1.12
STRAGGLER_OFTEN = 0.75
"""Share of steps in which one rank is the slowest, above which it is named."""
STRAGGLER_LOST = 0.05
"""Share of the step that the other ranks spend waiting for the slowest."""

LEAST_PLANNED_GAIN = 0.02
"""Share of a step below which a run would give its plan up."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """What a verdict needs in addition to the profile.

    Attributes:
        price_per_hour: of all the program's hardware.
        commands: names of stoker's commands; only these are advised.
        features: of the program, if known.
        run: the run folder as typed; its measurement anchors a plan.
        alternatives: predictions of the same step in another precision, by its name.
        mean_wait_cpu_s: processor time per step that the training thread uses while it waits for batches.
    """

    price_per_hour: float | None = None
    commands: frozenset[str] = frozenset({"run", "explain", "report", "perf", "doctor", "profile"})
    features: StepFeatures | None = None
    alternatives: Mapping[str, Predicted] = field(default_factory=dict[str, Predicted])
    mean_wait_cpu_s: float = 0.0
    run: str = ""


def level(share: float, levels: tuple[float, float]) -> str:
    """``high``, ``moderate`` or empty."""
    return "high" if share > levels[1] else "moderate" if share > levels[0] else ""


def judge(profile: Profile, context: Context) -> Verdict:
    """The verdict on a profile.

    What keeps the device idle comes before what it computes: stragglers, if waiting for them is most of the exposed
    communication; then high input, communication and host shares, the largest first; then moderate input and
    communication. Otherwise the step is bound by its own operations.
    """
    if not profile.sampled and level(_share(profile, "input"), INPUT_LEVELS) == "":
        return _unknown(profile)
    if _is_straggling(profile):
        return _straggler(profile, context)
    shares = {name: _share(profile, name) for name in ("input", "communication")}
    shares["host"] = _share(profile, "host") + _share(profile, "other") if profile.sampled else 0.0
    levels = {"input": INPUT_LEVELS, "communication": COMMUNICATION_LEVELS, "host": HOST_LEVELS}
    found = {name: level(share, levels[name]) for name, share in shares.items()}
    makers: dict[str, Callable[[Profile, Context, str], Verdict]] = {
        "input": _input, "communication": _communication, "host": _host,
    }  # fmt: skip
    for severity, names in (("high", tuple(makers)), ("moderate", ("input", "communication"))):
        limits = [name for name in names if found[name] == severity]
        if limits:
            name = max(limits, key=lambda each: shares[each])
            return makers[name](profile, context, severity)
    memory = _share(profile, "memory") + _share(profile, "optimizer")
    return _compute(profile, context) if _share(profile, "compute") >= memory else _memory(profile, context)


def _share(profile: Profile, part: str) -> float:
    return profile.parts.get(part, 0.0) / profile.seconds if profile.seconds > 0 else 0.0


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _program(profile: Profile) -> str:
    return shlex.join(profile.program)


def _gain(
    profile: Profile, context: Context, best_s: float, worst_s: float, basis: str, expected_s: float | None = None
) -> Gain:
    """A gain on this step; its seconds are as uncertain as the measured step, the saved share is not."""
    found = gain_of(profile.seconds, best_s, worst_s, basis, context.price_per_hour, expected_s)
    low = min(found.seconds, found.low * profile.low / profile.seconds)
    high = max(found.seconds, min(found.high * profile.high / profile.seconds, profile.seconds))
    return msgspec.structs.replace(found, low=low, high=high)


def _again(profile: Profile) -> str:
    return f"stoker profile {_program(profile)}"


def _is_straggling(profile: Profile) -> bool:
    found = profile.stragglers
    lost_s = profile.details.straggler_wait_s
    explains = lost_s > 0.5 * profile.parts["communication"]
    return (
        found is not None and found.ratio > STRAGGLER_RATIO and lost_s > STRAGGLER_LOST * profile.seconds and explains
    )


# -- one maker each --------------------------------------------------------------------------------------------------


def _unknown(profile: Profile) -> Verdict:
    text = f"{profile.steps} steps were seen, too few to look into: input is no limit, the rest is not divided"
    steps = max(4, profile.steps - 2)
    command = f"stoker profile --warmup 1 --steps {steps} {_program(profile)}"
    action = Action(text="measure more steps", command=command, no_gain="nothing is known to gain on")
    return Verdict(kind="UNKNOWN", severity="", share=0.0, text=text, evidence=[], action=action)


def _straggler(profile: Profile, context: Context) -> Verdict:
    found = profile.stragglers
    assert found is not None
    share = profile.details.straggler_wait_s / profile.seconds
    who = f"rank {found.rank}" if found.frequency >= STRAGGLER_OFTEN else "a rank, not always the same,"
    text = (
        f"{who} takes {found.ratio:.2f}x the mean of the ranks; the others wait for it {_percent(share)} of each step"
    )
    own = ", ".join(f"rank {number} {format_seconds(value)}" for number, value in enumerate(found.own_s[:8]))
    evidence = [
        f"own work of a step: {own}" + (", ..." if len(found.own_s) > 8 else ""),
        f"rank {found.rank} is the slowest in {_percent(found.frequency)} of {found.steps} sampled steps; it is most "
        f"above the mean in {_WORDS[found.part]}, by {format_seconds(found.part_s)}",
        f"slowest over mean {found.ratio:.2f} in the median, {found.ratio_p95:.2f} at the 95th percentile "
        "(ordinary jobs: 1.09 to 1.12)",
    ]
    now_s = profile.seconds
    basis = "that rank as fast as the mean of the others, step by step"
    gain = _gain(
        profile, context, now_s - found.excess_high_s, now_s - found.excess_low_s, basis, now_s - found.excess_s
    )
    remedies = {
        "input": ("feed that rank faster", f"stoker run {_program(profile)}"),
        "host": ("look at what else that rank's host does", "stoker doctor"),
    }
    text_of_action, command = remedies.get(found.part, ("look at that rank's machine", "stoker doctor"))
    if found.frequency < STRAGGLER_OFTEN:
        text_of_action, command = "look for what disturbs the ranks' machines", "stoker doctor"
    action = Action(
        text=f"{text_of_action} (rank {found.rank})" if found.frequency >= STRAGGLER_OFTEN else text_of_action,
        command=command,
        gain=gain,
    )
    return Verdict(kind="STRAGGLER", severity="high", share=share, text=text, evidence=evidence, action=action)


_WORDS: Mapping[str, str] = {
    "input": "waiting for input",
    "compute": "compute-bound operations",
    "memory": "memory-bound operations",
    "host": "the host's work",
    "communication": "communication",
    "optimizer": "the optimizer",
    "other": "the rest of the loop",
}


def _input(profile: Profile, context: Context, severity: str) -> Verdict:
    wait = profile.details.wait_s / profile.seconds
    share = _share(profile, "input")
    how = "highly" if severity == "high" else "moderately"
    text = f"the program waits for input {_percent(share)} of each step ({how} input-bound)"
    loader, usage = profile.loader, profile.usage
    evidence: list[str] = []
    if loader is not None:
        makers = format_count(loader.workers, "data worker") if loader.workers else _ITSELF
        makers += f", served by stoker ({loader.tier})" if loader.tier else ""
        evidence.append(f"batches of {loader.dataset} in the loop at {loader.site}: {makers}")
    if usage.process_s > 0:
        busy = (usage.process_s + usage.children_s) / profile.seconds
        evidence.append(f"{busy:.1f} of {profile.cores:g} cores are busy; the rest of a step takes "
                        f"{format_seconds(profile.seconds - profile.details.wait_s)}")  # fmt: skip
        if (others := cores_of_others(usage, profile.seconds)) > 0:
            evidence.append(f"other processes hold {others:.1f} of the cores: the gain is bounded by what they leave")
    if profile.details.copy_s > 0.5 * profile.parts["input"]:
        return _copy(profile, context, severity, text, evidence)
    if loader is not None and loader.tier:
        return Verdict(
            kind="INPUT-BOUND", severity=severity, share=share, text=text, evidence=evidence,
            action=Action(
                text="see how the loader is served and why; then make items cheaper, or take more cores",
                command=f"stoker explain {_program(profile)}", no_gain="stoker's data workers make the batches already",
            ),
        )  # fmt: skip
    best, worst = input_bounds(
        profile.seconds, profile.details.wait_s, context.mean_wait_cpu_s, usage, loader,
        cores=profile.cores, threads=profile.threads,
    )  # fmt: skip
    if (best + worst) / 2 > (1 - NOT_BOUND) * profile.seconds:
        evidence.append("making batches and training use up the cores: more workers would hardly help")
        return Verdict(
            kind="INPUT-BOUND", severity=severity, share=share, text=text, evidence=evidence,
            action=Action(
                text="make items cheaper, or take a machine with more cores", command="stoker doctor",
                no_gain="the cores of this machine leave no room",
            ),
        )  # fmt: skip
    basis = f"at most 1 / (1 - {wait:.3f}); bounded by the cores' processor time"
    return Verdict(
        kind="INPUT-BOUND", severity=severity, share=share, text=text, evidence=evidence,
        action=Action(
            text="let stoker's data workers make the batches", command=f"stoker run {_program(profile)}",
            gain=_gain(profile, context, best, worst, basis),
        ),
    )  # fmt: skip


_ITSELF = "no data workers: the program makes them itself"


def _copy(profile: Profile, context: Context, severity: str, text: str, evidence: list[str]) -> Verdict:
    """Most of the input is copying to the device, which can overlap with computation."""
    evidence = [*evidence, f"copies to the device take {format_seconds(profile.details.copy_s)} without overlap"]
    best = profile.seconds - profile.details.copy_s
    basis = "copies that overlap with compute cost nothing; copies that do not gain nothing"
    return Verdict(
        kind="INPUT-BOUND", severity=severity, share=_share(profile, "input"), text=text, evidence=evidence,
        action=Action(
            text="copy ahead: pin_memory=True in the loader and .to(device, non_blocking=True)",
            command=_again(profile),
            gain=_gain(profile, context, best, profile.seconds, basis),
        ),
    )  # fmt: skip


def _communication(profile: Profile, context: Context, severity: str) -> Verdict:
    share = _share(profile, "communication")
    exposed, hidden = profile.parts["communication"], profile.details.hidden_communication_s
    text = f"exposed communication between ranks takes {_percent(share)} of each step"
    evidence = [
        f"exposed {format_seconds(exposed)}, overlapped with compute {format_seconds(hidden)}",
        f"{format_seconds(profile.details.straggler_wait_s)} of the exposed time is straggler wait",
    ]
    waiting = min(exposed, profile.details.straggler_wait_s)
    planned = _planned_exchange(profile, context, exposed - waiting)
    if planned is not None:
        return Verdict(
            kind="COMMUNICATION-BOUND", severity=severity, share=share, text=text, evidence=evidence, action=planned
        )  # fmt: skip
    best, worst = profile.seconds - exposed / 2, profile.seconds - (exposed - waiting) / 2
    basis = "half as many exchanges for the same samples; straggler wait remains"
    return Verdict(
        kind="COMMUNICATION-BOUND", severity=severity, share=share, text=text, evidence=evidence,
        action=Action(
            text="exchange every second micro-batch: accumulate gradients twice as long, the first under no_sync()",
            command=_again(profile), gain=_gain(profile, context, best, worst, basis),
        ),
    )  # fmt: skip


def _planned_exchange(profile: Profile, context: Context, exposed_s: float) -> Action | None:
    """The advice to plan the exchange, where the layers of the program promise more than a run would ask for."""
    if context.features is None or profile.gpus < 2 or "run" not in context.commands:
        return None
    found = spared_exchange(context.features, profile.gpus, exposed_s, profile.parts["compute"])
    if found.seconds < LEAST_PLANNED_GAIN * profile.seconds:
        return None
    layers = format_count(found.layers, "layer")
    basis = (
        f"smaller forms of the gradients of {layers} spare {_percent(found.bytes_frac)} of the bytes; the run tries "
        "its plan, and returns to torch's exchange where it gains nothing; under DDP"
    )
    best = profile.seconds - exposed_s * found.bytes_frac
    return Action(
        text="exchange gradients as their layers allow, checked in each step: --comm auto",
        command=f"stoker run --comm auto {_program(profile)}",
        gain=_gain(profile, context, best, profile.seconds, basis, profile.seconds - found.seconds),
    )


def _host(profile: Profile, context: Context, severity: str) -> Verdict:
    host, other = profile.parts["host"], profile.parts["other"]
    share = (host + other) / profile.seconds
    evidence = [f"launching and dispatch {format_seconds(host)}, the loop after the optimizer {format_seconds(other)}"]
    calls = sum(operator.calls for operator in profile.operators)
    if calls:
        busy = sum(operator.seconds for operator in profile.operators)
        evidence.append(f"{calls:,.0f} operations a step, {format_seconds(busy / calls)} each in the mean")
    if other > host:
        text = f"the program's loop outside the model takes {_percent(share)} of each step"
        basis = "all of the time between optimizer and next batch, or none"
        action = Action(
            text="log, evaluate and save less often, or in another thread", command=_again(profile),
            gain=_gain(profile, context, profile.seconds - other, profile.seconds, basis),
        )  # fmt: skip
    else:
        waits = "the device" if profile.device != "cpu" else "operations"
        text = f"the host keeps {waits} waiting {_percent(share)} of each step"
        basis = "twice the batch, for the same samples: the host's work per batch stays, or grows with it"
        best = profile.seconds - host / 2
        action = Action(
            text="give each step more to do: twice the batch size, or torch.compile", command=_again(profile),
            gain=_gain(profile, context, best, profile.seconds, basis),
        )  # fmt: skip
    return Verdict(kind="HOST-BOUND", severity=severity, share=share, text=text, evidence=evidence, action=action)


def _compute(profile: Profile, context: Context) -> Verdict:
    share = _share(profile, "compute")
    text = f"products, convolutions, attention and recurrent layers take {_percent(share)} of each step"
    evidence = [*_overheads(profile), *_heaviest(profile, "compute")]
    faster = context.alternatives.get("bf16") or context.alternatives.get("fp16")
    gain: Gain | None = None
    if faster is not None and profile.predicted is not None and profile.precision in ("fp32", "tf32"):
        ratio = faster.seconds / profile.predicted.seconds
        spread = faster.high / faster.seconds
        basis = "predicted step in half precision over the predicted one in this, times the measured one"
        now_s = profile.seconds
        gain = _gain(profile, context, now_s * ratio / spread, now_s * ratio * spread, basis, now_s * ratio)
    if gain is not None and gain.saved_frac > 0:
        action = Action(text="mixed precision: torch.autocast with bfloat16", command=_again(profile), gain=gain)
    else:
        action = _other_hardware(profile, context)
    return Verdict(kind="COMPUTE-BOUND", severity="", share=share, text=text, evidence=evidence, action=action)


def _memory(profile: Profile, context: Context) -> Verdict:
    memory, optimizer = profile.parts["memory"], profile.parts["optimizer"]
    share = (memory + optimizer) / profile.seconds
    text = f"memory-bound operations take {_percent(share)} of each step"
    evidence = [
        f"of the model {format_seconds(memory)}, of the optimizer {format_seconds(optimizer)}",
        *_overheads(profile),
        *_heaviest(profile, "memory" if memory >= optimizer else "optimizer"),
    ]
    fused = _fused_memory(context.features) if memory >= optimizer else _fused_optimizer(context.features)
    what = (
        "torch.compile(model), which fuses chains of them" if memory >= optimizer else "the optimizer with fused=True"
    )
    if fused is None:
        action = Action(text=what, command=_features(profile, context), no_gain="the program's features are not known")
    else:
        part = max(memory, optimizer)
        basis = f"bytes that are left when fused: {_percent(fused)} of the part's; nothing fused at worst"
        best, worst = profile.seconds - (1 - fused) * part, profile.seconds
        calls = _fused_calls(context.features) if optimizer > memory and profile.device == "cpu" else 1.0
        if calls < fused:
            basis = (
                f"bytes that are left when fused: {_percent(fused)} of the part's; of its operations {_percent(calls)}"
            )
            best, worst = profile.seconds - (1 - calls) * part, best
        gain = _gain(profile, context, best, worst, basis)
        action = Action(text=what, command=_again(profile), gain=gain)
    return Verdict(kind="MEMORY-BOUND", severity="", share=share, text=text, evidence=evidence, action=action)


def _overheads(profile: Profile) -> list[str]:
    parts = ("input", "communication", "host", "other")
    found = [f"{_WORDS[name]} {_percent(_share(profile, name))}" for name in parts if _share(profile, name) >= 0.0005]
    return ["below their limits: " + ", ".join(found)] if found else []


def _heaviest(profile: Profile, label: str) -> list[str]:
    """The operations and the module that take most of a part."""
    operators = [each for each in profile.operators if each.label == label][:3]
    if not operators:
        return []
    total = profile.parts[label] or 1.0
    shown = ", ".join(f"{each.name.removeprefix('aten::')} {format_seconds(each.seconds)}" for each in operators)
    modules = [each for each in profile.modules if each.path] if label != "optimizer" else []
    best = max(modules, key=lambda each: each.compute_s if label == "compute" else each.memory_s, default=None)
    taken = (best.compute_s if label == "compute" else best.memory_s) / total if best else 0.0
    return [f"most of it: {shown}" + (f"; module {best.path} has {_percent(taken)}" if best and taken > 0.1 else "")]


def _fused_memory(features: StepFeatures | None) -> float | None:
    """Share of the bytes of the model's memory-bound operations that is left when chains are fused."""
    if features is None:
        return None
    own = [op for op in features.operations if op.phase != "optimizer" and op.kind not in MATRIX_KINDS]
    eager = sum(op.eager_bytes for op in own)
    return sum(op.fused_bytes for op in own) / eager if eager > 0 else None


def _fused_optimizer(features: StepFeatures | None) -> float | None:
    """Share of the optimizer's bytes that is left when each tensor is read and written once."""
    if features is None:
        return None
    eager = sum(op.eager_bytes for op in features.operations if op.phase == "optimizer")
    weights = features.weights
    gradients = weights.dense_gradient_bytes + weights.embedding_gradient_bytes
    least = 2 * weights.bytes + gradients + 2 * weights.optimizer_bytes
    return min(1.0, least / eager) if eager > 0 else None


def _fused_calls(features: StepFeatures | None) -> float:
    """Share of the optimizer's operations that is left if one is started for each tensor.

    On a CPU each is started by itself, and works on what the one before has left in the caches.
    """
    calls: dict[str, int] = {}
    for op in features.operations if features is not None else ():
        if op.phase == "optimizer":
            calls[op.name] = calls.get(op.name, 0) + op.count
    is_fused = any(name.startswith("_fused") for name in calls)
    return 1.0 if is_fused or not calls else min(calls.values()) / sum(calls.values())


def _features(profile: Profile, context: Context) -> str:
    is_script = bool(profile.program) and not profile.program[0].startswith("-")
    return f"stoker perf features {_program(profile)}" if is_script and "perf" in context.commands else _again(profile)


def _other_hardware(profile: Profile, context: Context) -> Action:
    is_script = bool(profile.program) and profile.program[0].endswith(".py")
    if "plan" not in context.commands or not is_script:
        return Action(
            text="fewer or cheaper products: the operations by FLOPs", command=_features(profile, context),
            no_gain="it depends on what is left out",
        )  # fmt: skip
    script, *arguments = profile.program
    rest = f" -- {shlex.join(arguments)}" if arguments else ""
    anchor = f" --anchor {shlex.quote(context.run)}" if context.run else ""
    return Action(
        text=f"other hardware, or more of it: what {PLANNED_SAMPLES:,} samples would take and cost there",
        command=f"stoker plan {shlex.quote(script)} --samples {PLANNED_SAMPLES}{anchor}{rest}",
        no_gain="the plan names it for each choice",
    )


PLANNED_SAMPLES = 1_000_000
"""A round number for a plan: how long a program trains is not known here."""

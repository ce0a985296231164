"""The prediction for a measured step: features are traced in a child, for a GPU of the catalogue or this CPU.

If it cannot be predicted, the profile has a line with the reason.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from stoker.core.errors import StokerError
from stoker.core.saying import said_to
from stoker.perf import catalogue, machine
from stoker.perf.diagnosis.residual import find_residual, modules_of
from stoker.perf.features.child_process import LEFT_IN_PIPE, InputState, input_as_at
from stoker.perf.features.program import characterise_program
from stoker.perf.features.records import MATRIX_KINDS, StepFeatures
from stoker.perf.machine.prediction import predicted_lines
from stoker.perf.machine.speed import Speed
from stoker.perf.prediction.prediction import Prediction
from stoker.perf.prediction.predictor import Predictor
from stoker.perf.strategy import Machines
from stoker.records.profile import FEATURES_NAME, Predicted, Profile
from stoker.run.elastic.inner_program import as_rank_of, traceable


@dataclasses.dataclass(frozen=True)
class Prophecy:
    """The prediction of a program's step.

    Attributes:
        features: of its step; None where it could not be traced.
        predicted: the step on the device that it was measured on.
        alternatives: in other precisions.
        modules: predicted seconds by part and module, if operations are predicted one by one.
        why_not: the reason, if there is no prediction.
    """

    features: StepFeatures | None = None
    predicted: Predicted | None = None
    alternatives: dict[str, Predicted] = dataclasses.field(default_factory=dict[str, Predicted])
    modules: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict[str, dict[str, float]])
    why_not: str = ""


def trace(
    program: Sequence[str], device: str, ranks: int, log: Path, given: InputState
) -> tuple[StepFeatures | None, str]:  # fmt: skip
    """The features of a program, or why there are none.

    Args:
        program: as python was given it; of one that starts ranks, what they run.
        device: whose kernels are counted.
        ranks: that the program runs as; one of them is traced, alone.
        log: receives what the program prints meanwhile; taken away again when all is well.
        given: standard input when the measured program began, which has read it since.
    """
    traced = traceable(program)
    if not traced:
        return None, f"only scripts and modules can be traced, not `{' '.join(program[:2])}`"
    try:
        with said_to(log), as_rank_of(ranks), input_as_at(given):
            found = characterise_program(traced, target="cuda" if device == "cuda" else "cpu")
    except StokerError as error:
        why = str(error.args[0]).replace("what it printed is above", f"what it printed is in {log}")
        return None, why + (LEFT_IN_PIPE if given.waits and LEFT_IN_PIPE not in why else "")
    except KeyboardInterrupt:
        return None, "tracing was interrupted"
    log.unlink(missing_ok=True)
    return found, ""


def prophesy(profile: Profile, features: StepFeatures | None, why_not: str) -> Prophecy:
    """Predicts the measured step from its features."""
    if features is None:
        return Prophecy(why_not=why_not)
    try:
        if profile.device == "cuda":
            return _on_gpu(profile, features)
        return _on_cpu(profile, features)
    except (StokerError, ValueError) as error:
        return Prophecy(features=features, why_not=str(error.args[0]))


def _on_gpu(profile: Profile, features: StepFeatures) -> Prophecy:
    if not profile.gpu:
        known = ", ".join(catalogue.catalogue())
        return Prophecy(features=features, why_not=f"{profile.device_name} is not in the catalogue ({known})")
    gpu = catalogue.gpu(profile.gpu)
    machines = Machines(gpu=gpu, gpus=profile.gpus, gpus_per_node=8)
    predict = Predictor().predict
    found = predict(features, machines, precision=profile.precision if profile.precision in gpu.rates else None)
    others = {name: predict(features, machines, precision=name) for name in ("bf16", "fp16") if name in gpu.rates}
    basis = f"{gpu.name} of the catalogue"
    if found.tier == "refused":
        return Prophecy(features=features, why_not="; ".join(found.reasons))
    return Prophecy(
        features=features,
        predicted=_as_record(found, basis),
        alternatives={name: _as_record(each, basis) for name, each in others.items() if each.tier != "refused"},
    )


def _on_cpu(profile: Profile, features: StepFeatures) -> Prophecy:
    """The prediction by a calibration of this machine, where there is one."""
    path = machine.default_path()
    if not path.exists():
        why_not = "this machine's CPU has not been measured; `stoker perf calibrate` does it"
        return Prophecy(features=features, why_not=why_not)
    rates = machine.load(path)
    found = machine.predict_step(features, rates)
    if found.tier == "refused" or not math.isfinite(found.seconds):
        return Prophecy(features=features, why_not="; ".join(found.reasons))
    basis = f"this machine's calibration ({rates.threads} threads)"
    if profile.gpus > 1:
        basis += ", one rank alone, without exchange"
    if rates.threads != profile.threads:
        basis += f"; the program computes with {profile.threads}"
    modules: dict[str, dict[str, float]] = {"compute": {}, "memory": {}}
    for line in predicted_lines(features, Speed(rates)):
        if line.operation.phase != "optimizer":
            found_in = modules["compute" if line.operation.kind in MATRIX_KINDS else "memory"]
            found_in[line.operation.module] = found_in.get(line.operation.module, 0.0) + line.seconds
    return Prophecy(features=features, predicted=_as_record(found, basis), modules=modules)


def _as_record(found: Prediction, basis: str) -> Predicted:
    return Predicted(
        seconds=found.seconds, low=found.low, high=found.high, tier=found.tier, parts=dict(found.parts), basis=basis,
        reasons=list(found.reasons),
    )  # fmt: skip


def add_prediction(profile: Profile, prophecy: Prophecy, folder: Path) -> None:
    """Writes the features next to the profile, and the prediction and its residual into it."""
    if prophecy.features is not None:
        target = folder / FEATURES_NAME
        target.write_bytes(prophecy.features.to_json())
        profile.features = str(target)
        if profile.batch_size is None:
            profile.batch_size = prophecy.features.batch_size
    profile.predicted, profile.unpredicted = prophecy.predicted, prophecy.why_not
    if prophecy.predicted is not None and profile.sampled:
        profile.residual = find_residual(
            profile.parts, prophecy.predicted, profile.modules, prophecy.modules or modules_of(prophecy.features)
        )

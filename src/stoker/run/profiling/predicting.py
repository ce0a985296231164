"""The prediction that stands beside a measurement: features traced in a child, then a GPU of the catalogue or this CPU.

What stands in the way is a line in the profile, never the end of it.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stoker.core.errors import StokerError
from stoker.perf import catalogue
from stoker.perf.features.program import characterise_program
from stoker.perf.features.records import StepFeatures
from stoker.perf.prediction.prediction import Prediction
from stoker.perf.prediction.predictor import predict
from stoker.perf.prediction.setting import Machines
from stoker.perf.verdict.profile import FEATURES_NAME, Predicted, Profile
from stoker.perf.verdict.residual import find_residual


@dataclasses.dataclass(frozen=True)
class Prophecy:
    """What is known of a program beforehand.

    Attributes:
        features: of its step; None where it could not be traced.
        predicted: the step on the device that it was measured on.
        alternatives: in other precisions.
        why_not: what stood in the way, where there is no prediction.
    """

    features: StepFeatures | None = None
    predicted: Predicted | None = None
    alternatives: dict[str, Predicted] = dataclasses.field(default_factory=dict[str, Predicted])
    why_not: str = ""


def trace(program: Sequence[str], device: str) -> tuple[StepFeatures | None, str]:
    """The features of a program, or why there are none."""
    if program[0].startswith("-"):
        return None, f"only scripts can be traced, not `{' '.join(program[:2])}`"
    environ = {name: os.environ.pop(name) for name in _RANK_VARIABLES if name in os.environ}
    try:
        return characterise_program(list(program), target="cuda" if device == "cuda" else "cpu"), ""
    except StokerError as error:
        return None, str(error.args[0])
    except KeyboardInterrupt:
        return None, "tracing was interrupted"
    finally:
        os.environ.update(environ)


_RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "TORCHELASTIC_RUN_ID")
"""One rank is traced, alone."""


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
    """By a calibration of this machine, where there is one."""
    why_not = "no calibration of this machine's CPU; `stoker perf calibrate` makes one"
    if importlib.util.find_spec("stoker.perf.machine") is None:
        return Prophecy(features=features, why_not="CPUs are not predicted by this version")
    machine: Any = importlib.import_module("stoker.perf.machine")
    rates = machine.saved_rates() if hasattr(machine, "saved_rates") else None
    if rates is None:
        return Prophecy(features=features, why_not=why_not)
    found: Prediction = machine.predict_step(features, rates)
    if found.tier == "refused" or not math.isfinite(found.seconds):
        return Prophecy(features=features, why_not="; ".join(found.reasons))
    return Prophecy(features=features, predicted=_as_record(found, "this machine's calibration"))


def _as_record(found: Prediction, basis: str) -> Predicted:
    return Predicted(
        seconds=found.seconds, low=found.low, high=found.high, tier=found.tier, parts=dict(found.parts), basis=basis,
        reasons=list(found.reasons),
    )  # fmt: skip


def add_prediction(profile: Profile, prophecy: Prophecy, folder: Path) -> None:
    """Writes the features beside the profile, and the prediction and its residual into it."""
    if prophecy.features is not None:
        target = folder / FEATURES_NAME
        target.write_bytes(prophecy.features.to_json())
        profile.features = str(target)
        if profile.batch_size is None:
            profile.batch_size = prophecy.features.batch_size
    profile.predicted, profile.unpredicted = prophecy.predicted, prophecy.why_not
    if prophecy.predicted is not None and profile.sampled:
        profile.residual = find_residual(profile.parts, prophecy.predicted, profile.modules, prophecy.features)

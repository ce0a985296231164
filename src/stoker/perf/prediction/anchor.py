"""A measured step of a program, which sharpens predictions of the same program elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from stoker.core.errors import RunFolderError
from stoker.perf.catalogue import catalogue
from stoker.perf.features.records import StepFeatures
from stoker.records.parts import PREDICTED
from stoker.records.profile import FEATURES_NAME, read_profile

CPU = "cpu"
"""Stands for the GPU if the step was measured on a CPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """One measured step.

    Attributes:
        gpu: name in the catalogue, or ``cpu``.
        gpus: ranks, each with one.
        seconds: of an optimizer step.
        low, high: interval of the measurement.
        parts: seconds by name, of :data:`~stoker.records.parts.PREDICTED`; they sum to ``seconds``.
        precision: of products, as the catalogue calls it; empty if unknown.
        batch_size: samples of one rank and step; None if unknown.
        cpu_seconds_per_sample: CPU time to make a sample; None if not measured.
        features: of the measured step; by default those of the predicted step.

    Raises:
        ValueError: at construction, for a step without time, an interval that excludes it, or an unknown part.
    """

    gpu: str
    gpus: int
    seconds: float
    low: float
    high: float
    parts: Mapping[str, float] = field(default_factory=dict[str, float])
    precision: str = ""
    batch_size: int | None = None
    cpu_seconds_per_sample: float | None = None
    features: StepFeatures | None = None

    def __post_init__(self) -> None:
        """Checks the values together."""
        if not (0 < self.low <= self.seconds <= self.high < float("inf")):
            raise ValueError(
                f"`seconds` must be positive and in its interval, got {self.seconds} in {self.low} to {self.high}"
            )
        if self.gpus < 1:
            raise ValueError(f"`gpus` must be at least 1, got {self.gpus}")
        unknown = [name for name in self.parts if name not in PREDICTED]
        if unknown:
            raise ValueError(f"`parts` must be among {', '.join(PREDICTED)}, got {unknown[0]!r}")

    @property
    def own_s(self) -> float | None:
        """Time of the GPU's own work in the step: without waiting for input and for other GPUs.

        None if the step was measured on several GPUs and its parts are not known.
        """
        if self.gpus > 1 and "communication" not in self.parts:
            return None
        return self.seconds - self.parts.get("input", 0.0) - self.parts.get("communication", 0.0)

    def check(self, features: StepFeatures) -> None:
        """Checks that a step of this program was measured.

        Raises:
            ValueError: it was traced, and has another number of parameters.
        """
        if self.features is None or self.features.weights.count == features.weights.count:
            return
        raise ValueError(
            f"`anchor` must be a measured step of {features.name}, whose model has {features.weights.count:,} "
            f"parameters, got one of {self.features.name} with {self.features.weights.count:,}; measure this program "
            "with `stoker profile`, or leave the anchor out"
        )

    @classmethod
    def from_run(cls, path: Path | str) -> Anchor:
        """The step that `stoker profile` measured.

        Args:
            path: the run folder, or ``profile.json`` itself.

        Raises:
            RunFolderError: there is no profile, it is not readable, it counts batches rather than optimizer steps, or
                its GPU is not in the catalogue.
        """
        found = read_profile(Path(path))
        if found.unit != "optimizer step":
            raise RunFolderError(
                f"`{path}` must have measured optimizer steps to be an anchor, and has measured batches: no optimizer "
                "stepped",
                path=str(path),
            )
        if found.device != CPU and not found.gpu:
            raise RunFolderError(
                f"`{path}` was measured on {found.device_name or found.device}, which is not in the catalogue "
                f"({', '.join(catalogue())})",
                path=str(path),
            )
        return cls(
            gpu=found.gpu or CPU,
            gpus=found.gpus,
            seconds=found.seconds,
            low=found.low,
            high=found.high,
            # Without sampled steps, the exchange cannot be told from the rest.
            parts={name: part for name, part in found.parts.items() if found.sampled or name != "communication"},
            precision=found.precision,
            batch_size=found.batch_size,
            cpu_seconds_per_sample=found.cpu_seconds_per_sample,
            features=_features(found.features, Path(path)) if found.features else None,
        )


def _features(name: str, run: Path) -> StepFeatures | None:
    """The traced features of the program, also if the run's folder was moved; None if they are gone."""
    beside = (run if run.is_dir() else run.parent) / FEATURES_NAME
    for path in (Path(name), beside):
        with contextlib.suppress(OSError, msgspec.DecodeError):
            return StepFeatures.from_json(path.read_bytes())
    return None

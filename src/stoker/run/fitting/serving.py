"""`stoker run --fit` in a process of the program: a plan is applied, and the first steps are counted."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec
import torch
from torch import nn

from stoker.perf.features.tracing.distributed import paths
from stoker.perf.memory.reserve import CONTEXT_BYTES
from stoker.records.events import Notice
from stoker.records.fitting import FitPlan, FitRun, FitRuns
from stoker.records.fitting_file import write_fits
from stoker.run.fitting.devices import EMULATED
from stoker.run.loaders.serving import Serving
from stoker.train.fitting.applying import AppliedPlan
from stoker.train.fitting.counting import StepCount
from stoker.ui.fitting.words import write_outcome

_COUNTED = 3
"""Steps that are counted: the first makes the optimizer's states, later ones are alike."""


def _reserved() -> int:
    """Most bytes that CUDA's allocator held since it was asked last, and the context that a prediction assumes."""
    most = torch.cuda.max_memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    return most + int(CONTEXT_BYTES)


class Fitting:
    """The fit of one process of a program.

    Args:
        plan: file with the plan.
        mode: whether it is only reported.
        serving: of the process; shows and records what is said.
        folder: of the run.
    """

    def __init__(self, plan: Path, mode: Literal["report", "auto"], serving: Serving, folder: Path) -> None:
        self._plan = msgspec.json.decode(plan.read_bytes(), type=FitPlan)
        self._mode: Literal["report", "auto"] = mode
        self._serving, self._folder = serving, folder
        self._applied = AppliedPlan(self._plan, paths, self._begun)
        reserved = None if self._plan.device == EMULATED else _reserved
        self._count = StepCount(
            _COUNTED, serving.clock.is_inside, self._counted, reserved, self._plan.passes_by_hand
        )  # fmt: skip

    def start(self) -> None:
        """Waits for the model from now on."""
        if self._acts:
            self._applied.install()

    @property
    def _acts(self) -> bool:
        """Whether anything is to be done: what fits already is not even counted."""
        return self._mode == "auto" and self._plan.changes

    def _begun(self, model: nn.Module) -> None:
        for reason in self._left():
            self._tell(reason)
        self._count.start()

    def _counted(self) -> None:
        if line := write_outcome(self.record()):
            self._tell(line)

    def _tell(self, line: str) -> None:
        self._serving.emit(Notice(t_s=self._serving.now_s(), text=f"fit: {line}"))

    def _left(self) -> tuple[str, ...]:
        return tuple(f"`{name}` is left as it is: {reason}" for name, reason in self._applied.left.items())

    def record(self) -> FitRun:
        """The plan, and what came of it so far."""
        return FitRun(
            plan=self._plan, mode=self._mode, rank=self._serving.place.rank, applied=tuple(self._applied.applied),
            left=self._left(), counted=tuple(self._count.peaks),
        )  # fmt: skip

    def finish(self, rank: int) -> None:
        """Takes back all changes and writes the record, on rank 0."""
        run = self.record()
        self._count.stop()
        self._applied.remove()
        if self._acts and self._applied.model is None:
            self._tell(f"no forward pass of a {self._plan.model} was seen for training: nothing was changed")
            run = msgspec.structs.replace(run, notes=("the model that was traced was not seen",))
        if not rank:
            write_fits(self._folder, FitRuns(runs=(run,)))

"""The plan for a model of a running program: traced on its first inputs, without a child process."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stoker.perf.features.step import trace
from stoker.perf.features.tracing.distributed import paths
from stoker.perf.memory.choice.fitting import FitQuestion, plan_fit
from stoker.records.fitting import FitPlan
from stoker.run.fitting.devices import EMULATED, FitDevice
from stoker.run.fitting.looking import ModelLook
from stoker.run.fitting.pricing import host_link, priced
from stoker.train.fitting.calling import ModelPlanner
from stoker.ui.fitting.words import write_plan


class LibraryPlanner:
    """Traces a model with its optimizer and a loss, and chooses.

    Args:
        budget: bytes.
        loss: what makes a scalar of the model's output.
    """

    def __init__(self, budget: int, loss: Callable[[Any], Tensor] | None) -> None:
        self._budget, self._loss = budget, loss
        self.paths = paths

    def __call__(
        self, model: nn.Module, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> FitPlan:
        """The plan."""
        on_gpu = any(parameter.is_cuda for parameter in model.parameters())
        name = torch.cuda.get_device_name() if on_gpu else EMULATED
        device = FitDevice(name=name, budget=self._budget, target="cuda" if on_gpu else "cpu")
        inputs: Any = args if not kwargs else dict(inspect.signature(model.forward).bind(*args, **kwargs).arguments)
        kind = "cuda" if on_gpu else "cpu"
        autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        look = ModelLook()
        look.install()
        try:
            features, timeline = trace(
                model, inputs, optimizer=optimizer, loss=self._loss, autocast=autocast, target=device.target
            )
        finally:
            look.remove()
        found = look.found(look.first, (optimizer,), gradients_read="what the program does with them is not known here")
        question = FitQuestion(
            name=type(model).__name__, features=features, timeline=priced(features, timeline, device), model=found,
            budget=self._budget, device=device.name, emulated=device.emulated, barred={"expandable": _TOO_LATE},
            link=host_link(device), host_is_last=device.emulated,
        )  # fmt: skip
        return plan_fit(question)

    def tell(self, plan: FitPlan) -> str:
        """The plan in one line."""
        return write_plan(plan)


_TOO_LATE = "CUDA's allocator is at work already"


def planner(budget: int, loss: Callable[[Any], Tensor] | None = None) -> ModelPlanner:
    """What decides for a model."""
    return LibraryPlanner(budget, loss)

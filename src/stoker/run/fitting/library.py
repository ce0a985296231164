"""The plan for a model of a running program: traced on its first inputs, without a child process."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from stoker.core.errors import FitError
from stoker.core.mishaps import reraise_from_handler
from stoker.core.texts import to_json
from stoker.perf.features.step import trace
from stoker.perf.features.tracing.distributed import paths
from stoker.perf.memory.choice.fitting import FitQuestion, plan_fit
from stoker.perf.memory.ranks import chosen, facts_of, plan_ranks, ranked
from stoker.perf.memory.reserve import replays_forgotten
from stoker.records.fitting import FitPlan
from stoker.run.fitting.devices import EMULATED, FitDevice
from stoker.run.fitting.handing import assumed_link, link_of
from stoker.run.fitting.looking.model import ModelLook
from stoker.run.fitting.pricing import host_link, priced
from stoker.train.fitting.calling import ModelPlanner
from stoker.train.sharding.telling import sums_timed, told_by_first
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

    @replays_forgotten()
    def __call__(
        self, model: nn.Module, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> FitPlan:
        """The plan; for a replicated model that of its first rank, which all ranks wait for.

        Raises:
            FitError: the first rank could not plan.
        """
        if not isinstance(model, DistributedDataParallel):
            return plan_fit(self._question(model, optimizer, args, kwargs))
        group: dist.ProcessGroup = cast("Any", model).process_group
        ranks = dist.get_world_size(group)
        link = link_of(sums_timed(group), ranks) or assumed_link()
        decided, trouble = b"", None
        if dist.get_rank(group) == 0:
            backend = "nccl" if dist.get_backend(group) == "nccl" else "gloo"
            try:
                question = self._question(cast("Any", model).module, optimizer, args, kwargs)
                question = replace(question, link=None, barred={**question.barred, "fsdp2": _MADE, "stages": _MADE})
                facts = facts_of(question.timeline, optimizers=question.model.optimizers)
                decided = to_json(chosen(ranked(plan_ranks(question, ranks, facts), facts), link, backend))
            except Exception as error:  # the others wait for its word
                reraise_from_handler(error)
                trouble = error
        told = told_by_first(group, decided)
        if trouble is not None:
            raise trouble
        if not told:
            raise FitError("`rank 0` must plan for all ranks, and could not; it says why")
        return msgspec.json.decode(told, type=FitPlan)

    def _question(
        self, model: nn.Module, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> FitQuestion:
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
        return FitQuestion(
            name=type(model).__name__, features=features, timeline=priced(features, timeline, device), model=found,
            budget=self._budget, device=device.name, emulated=device.emulated, barred={"expandable": _TOO_LATE},
            link=host_link(device), host_is_last=device.emulated,
        )  # fmt: skip

    def tell(self, plan: FitPlan) -> str:
        """The plan in one line."""
        return write_plan(plan)


_MADE = "its DistributedDataParallel is made; see stoker.train.shard_weights"
_TOO_LATE = "CUDA's allocator is at work already"


def planner(budget: int, loss: Callable[[Any], Tensor] | None = None) -> ModelPlanner:
    """What decides for a model."""
    return LibraryPlanner(budget, loss)

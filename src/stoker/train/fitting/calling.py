# pyright: reportUnknownMemberType=false
"""The fit of one model and its optimizer, as a program asks for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast

import msgspec
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from stoker.core.mishaps import line_of, reraise_from_handler
from stoker.core.saying import say
from stoker.core.units import parse_bytes
from stoker.records.fitting import FitPlan
from stoker.train.fitting.applying import AppliedPlan

if TYPE_CHECKING:
    from stoker.train.sharding.states import StateShares

_PLANNER = ("stoker.run.fitting.library", "planner")
"""What traces and chooses. It lives in a layer above, where capabilities are joined, and so is found by name."""

Paths = Callable[[nn.Module], Iterable[tuple[str, nn.Module]]]


class ModelPlanner(Protocol):
    """Traces a model on its first inputs and chooses."""

    @property
    def paths(self) -> Paths:
        """Modules of a model by the paths of its plans."""
        ...

    def __call__(
        self, model: nn.Module, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> FitPlan:
        """The plan, of the paths that ``paths`` gives."""
        ...

    def tell(self, plan: FitPlan) -> str:
        """The plan in one line."""
        ...


class ModelFit:
    """A model that is made to fit with its first forward pass for training.

    Args:
        model: to change.
        optimizer: of its parameters.
        planner: what decides.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, planner: ModelPlanner) -> None:
        self._model, self._optimizer, self._planner = model, optimizer, planner
        self.plan: FitPlan | None = None
        """Once there is one."""
        self._applied: AppliedPlan | None = None
        self._shares: StateShares | None = None
        self._hook: Any = model.register_forward_pre_hook(self._called, with_kwargs=True)

    def _called(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not torch.is_grad_enabled() or self.plan is not None:
            return
        self._hook.remove()
        try:
            self.plan = self._planner(model, self._optimizer, args, kwargs)
            self._say(f"fit of {_name_of(model)}: {self._planner.tell(self.plan)}")
            if self.plan.changes and self.plan.of("zero1"):
                self._share_states(cast("DistributedDataParallel", model))
            if self.plan.changes:
                others = tuple(each for each in self.plan.measures if each.kind != "zero1")
                self._applied = AppliedPlan(msgspec.structs.replace(self.plan, measures=others), self._planner.paths)
                self._applied.apply(model)
        except Exception as error:
            reraise_from_handler(error)
            say(line_of("fit", error, "the model stays as it is"))

    def _share_states(self, ddp: DistributedDataParallel) -> None:
        # Imported here: few models are replicated.
        from stoker.train.sharding.states import shard_states

        self._shares = shard_states(ddp, refused=lambda reason: self._say(f"ZeRO-1 is left out: {reason}"))

    def _say(self, line: str) -> None:
        """Says a line, of several ranks on the first one."""
        group: Any = getattr(self._model, "process_group", None)
        if group is None or not group.rank():
            say(line)

    def close(self) -> None:
        """Takes back all changes; where ranks share states, on all of them."""
        self._hook.remove()
        if self._applied is not None:
            self._applied.remove()
        if self._shares is not None:
            self._shares.undo()
            self._shares = None


def _name_of(model: nn.Module) -> str:
    inner: nn.Module = cast("Any", model).module if isinstance(model, DistributedDataParallel) else model
    return type(inner).__name__


def fit(
    model: nn.Module, optimizer: Optimizer, *, budget: int | str, loss: Callable[[Any], Tensor] | None = None
) -> ModelFit:
    """Makes a training step of a model fit into a budget, in the least time, with losses that are equal bit for bit.

    With its first forward pass for training the model is traced on what it is given; nothing is computed for that. Then
    forward passes of chosen modules are repeated in the backward pass, and the optimizer may keep fewer temporaries.
    ``close()`` takes both back. What the program does with gradients is not known here, so they are left to it.

    The ranks of a ``DistributedDataParallel`` may keep shares of the optimizer's states as well: the first one plans,
    at the rate of sums between them, and all take its plan. Weights are shared by
    :func:`stoker.train.shard_weights`, in the place of the constructor.

    Args:
        model: to train, or a ``DistributedDataParallel`` around it; its modules stay the same objects.
        optimizer: of its parameters.
        budget: bytes of tensors (on a GPU, of the device), such as ``"20GB"``.
        loss: what makes a scalar from the model's output; by default its sum, or its own ``loss``.

    Returns:
        The fit; its ``plan`` is there once the model was called.

    Raises:
        ValueError: the budget is no size.
    """
    size = parse_bytes(budget) if isinstance(budget, str) else budget
    if size <= 0:
        raise ValueError(f"`budget` must be a positive size such as 20GB, got {budget!r}")
    make: Any = getattr(import_module(_PLANNER[0]), _PLANNER[1])
    return ModelFit(model, optimizer, cast("ModelPlanner", make(size, loss)))

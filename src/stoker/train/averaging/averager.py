# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Averages the model of a running program: its hooks, its process group, and the call that undoes all."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from stoker.core.errors import ExchangeError
from stoker.records.events import ModelAveraged
from stoker.train.averaging.contents import buffers_of, parameters_of
from stoker.train.averaging.group_means import GroupMeans
from stoker.train.averaging.looks import MeansSeen
from stoker.train.averaging.policy import AveragingRules
from stoker.train.averaging.replica import AveragedReplica
from stoker.train.program.versions import unlike_versions
from stoker.train.splitting.parts import split_models

_KEPT = 4096
"""Records that an averager keeps, so that its memory is constant."""
_numbers = iter(range(1 << 62))


class ModelAverager:
    """A model whose ranks train apart and take means, until :meth:`close`.

    The average comes right after a step of the optimizer, on all ranks after the same step. Under DDP gradients are not
    exchanged meanwhile. Evaluations and state dicts see the last mean, and need no other rank.

    Args:
        module: the model, or DDP around it.
        optimizers: those that train it, in the order in which they step; none, to find them as they step.
        means: the program's process group.
        rules: of the policy.
        on_round: called with the record of each average.
        clock: seconds that pass; another one where they are emulated.

    Note: to be made on all ranks, and at the same step. A rank that makes fewer steps than the others lets them wait,
        as under DDP.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizers: Sequence[Optimizer],
        *,
        means: GroupMeans,
        rules: AveragingRules | None = None,
        on_round: Callable[[ModelAveraged], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.rounds: deque[ModelAveraged] = deque(maxlen=_KEPT)
        """Records of the last averages."""
        self._on_round = on_round
        self._means = means
        ddp = isinstance(module, DistributedDataParallel)
        self._model: nn.Module = module.module if isinstance(module, DistributedDataParallel) else module
        self._optimizers = list(optimizers)
        self._ids = {id(parameter) for parameter in self._model.parameters()}
        if not ddp:
            self._means.broadcast([p.data for p in parameters_of(self._model)] + buffers_of(self._model))
        self._means.look_out()
        self.replica = AveragedReplica(
            self._model,
            self._optimizers,
            ranks=means.ranks,
            islands=means.num_islands,
            rules=rules or AveragingRules(),
            clock=clock,
            on_round=self._record,
            name=f"{type(self._model).__name__} {next(_numbers)}",
        )
        self._seen = MeansSeen(self._model, self._optimizers, self.replica)
        # Public, and what programs use to accumulate gradients: nothing is exchanged while it holds.
        self._quiet: AbstractContextManager[Any] | None = module.no_sync() if ddp else None
        if self._quiet is not None:
            self._quiet.__enter__()
        if self._optimizers:
            self._hook: Any = self._optimizers[-1].register_step_post_hook(self._stepped)
        else:
            self._hook = register_optimizer_step_post_hook(self._any_stepped)

    def average(self) -> None:
        """Averages now, whatever the period. Collective: to be called on all ranks."""
        self._means.carry_out(self.replica.round(), self.replica.policy.steps)

    def close(self) -> None:
        """Undoes all: the ranks train on with the weights that they have, under DDP with its exchange."""
        self._hook.remove()
        self._means.close()
        self._seen.close()
        quiet, self._quiet = self._quiet, None
        if quiet is not None:
            quiet.__exit__(None, None, None)

    def _stepped(self, *_: Any) -> None:
        asked = self.replica.stepped()
        if asked is not None:
            self._means.carry_out(asked, self.replica.policy.steps)

    def _any_stepped(self, optimizer: Optimizer, *_: Any) -> None:
        """A step of any optimizer of the program: the one with most of the model's weights counts as the step."""
        if all(optimizer is not each for each in self._optimizers):
            if self._weights_in(optimizer) == 0:
                return
            self._optimizers.append(optimizer)
            self._optimizers.sort(key=self._weights_in)
            self.replica.contents.optimizers = list(self._optimizers)
            self._seen.add(optimizer)
        if optimizer is self._optimizers[-1]:
            self._stepped()

    def _weights_in(self, optimizer: Optimizer) -> int:
        held = (parameter for group in optimizer.param_groups for parameter in group["params"])
        return sum(parameter.numel() for parameter in held if id(parameter) in self._ids)

    def _record(self, record: ModelAveraged) -> None:
        self.rounds.append(record)
        if self._on_round is not None:
            self._on_round(record)


def average(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    *,
    rules: AveragingRules | None = None,
    group: dist.ProcessGroup | None = None,
    islands: Sequence[Sequence[int]] = (),
    on_round: Callable[[ModelAveraged], None] | None = None,
) -> ModelAverager:
    """Lets the ranks of a program train apart, and averages them when their agreement asks for it.

    Losses differ from those of DDP. With ``AveragingRules(max_period=1)`` each step is averaged, which for SGD is what
    DDP computes, to rounding.

    Args:
        model: in plain torch, or DDP around it; the weights of plain ones are rank 0's from now on.
        optimizer: what trains it; several in the order in which they step.
        rules: of the policy.
        group: process group of the ranks; that of DDP, else the default one.
        islands: ranks by island, for rules with the form ``islands``; for example those of one host.
        on_round: called with the record of each average.

    Returns:
        What undoes it, with the records.

    Raises:
        ExchangeError: the ranks have different versions of stoker.
        ValueError: the model cannot be averaged, there is no process group, or form and islands do not fit.
    """
    rules = rules or AveragingRules()
    if not dist.is_available() or not dist.is_initialized():
        raise ValueError(
            "`average` must find a process group, got none; call torch.distributed.init_process_group first"
        )
    if reason := why_not(model):
        raise ValueError(reason)
    if (rules.form == "islands") != bool(islands):
        raise ValueError(
            f"`islands` must be given for the form `islands`, and for it alone, got {len(islands)} islands for the "
            f"form `{rules.form}`"
        )
    optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer)
    if not optimizers:
        raise ValueError("`optimizer` must name what trains the model, got none")
    if unlike := unlike_versions(_group_of(model, group), model):
        raise ExchangeError(unlike)
    means = GroupMeans(_group_of(model, group), islands)
    return ModelAverager(model, optimizers, means=means, rules=rules, on_round=on_round)


def serve(
    ddp: DistributedDataParallel,
    *,
    rules: AveragingRules | None = None,
    on_round: Callable[[ModelAveraged], None] | None = None,
) -> ModelAverager:
    """Likewise for a model of an unmodified program: its optimizers are found as they step.

    Args:
        ddp: that the program has made.
        rules: of the policy; forms without islands.
        on_round: called with the record of each average.

    Raises:
        ValueError: it cannot be averaged.
    """
    if reason := why_not(ddp):
        raise ValueError(reason)
    return ModelAverager(ddp, (), means=GroupMeans(_group_of(ddp, None)), rules=rules, on_round=on_round)


def why_not(model: nn.Module) -> str:
    """Why a model cannot be averaged, as a sentence; empty where it can."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    name = type(inner).__name__
    if isinstance(model, DistributedDataParallel) and model.static_graph:
        # Outside of the exchange torch counts hooks that it never sees: an internal assertion in the first backward.
        return f"`{name}` must be in a DistributedDataParallel without `static_graph` to be averaged, got True"
    if inner in split_models:
        return f"`{name}` must hold whole weights on each rank to be averaged, got split layers"
    if not parameters_of(inner):
        return f"`{name}` must have weights that are trained to be averaged, got none"
    for path, parameter in inner.named_parameters():
        if type(parameter.data) is not torch.Tensor:
            kind = type(parameter.data).__name__
            return f"`{name}` must hold whole weights on each rank to be averaged, got a {kind} for `{path}`"
    return ""


def _group_of(model: nn.Module, group: dist.ProcessGroup | None) -> dist.ProcessGroup | None:
    return model.process_group if group is None and isinstance(model, DistributedDataParallel) else group

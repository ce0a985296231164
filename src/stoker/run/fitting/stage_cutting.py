"""Where a module is cut into stages: traced on a batch, so that the slowest stage takes least, within memory."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from stoker.perf.communication.times import layers_of
from stoker.perf.features.step import trace
from stoker.perf.memory.stages import cuts_of
from stoker.run.fitting.devices import EMULATED, FitDevice
from stoker.run.fitting.pricing import priced


def cuts_for(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], ranks: int, optimizer: Optimizer | None,
    budget: int | None,
) -> list[str]:  # fmt: skip
    """Paths of the modules with which the second and further stages begin.

    Args:
        module: to cut.
        args: of a call.
        kwargs: likewise.
        ranks: as many stages.
        optimizer: that trains the module; without one, it is taken to be AdamW.
        budget: most bytes that a rank may hold; None for no limit.

    Raises:
        TracingError: the module can't be traced.
        ValueError: it has fewer parts than ranks, or no cut fits.
    """
    on_gpu = any(parameter.is_cuda for parameter in module.parameters())
    target = "cuda" if on_gpu else "cpu"
    name = torch.cuda.get_device_name() if on_gpu else EMULATED
    inputs: Any = args if not kwargs else dict(inspect.signature(module.forward).bind(*args, **kwargs).arguments)
    autocast = torch.get_autocast_dtype(target) if torch.is_autocast_enabled(target) else None
    features, timeline = trace(
        module, inputs, optimizer=optimizer or torch.optim.AdamW, autocast=autocast, target=target
    )
    device = FitDevice(name=name, budget=budget or 0, target=target)
    return list(cuts_of(layers_of(features), priced(features, timeline, device), ranks, budget))

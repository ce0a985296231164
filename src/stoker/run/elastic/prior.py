"""What communication adds to a step of several training workers before any was measured: the terms of ``perf``."""

from __future__ import annotations

from collections.abc import Callable

from stoker.perf.catalogue import catalogue
from stoker.perf.communication import Group, fabric_of
from stoker.perf.communication.collectives import all_reduce

_BACKWARD = 2 / 3
"""Share of a step during which gradients are exchanged while others are computed."""


def exposed_seconds(accelerator: str, gradient_bytes: int, step_s: float) -> Callable[[int], float]:
    """The least time that summing gradients adds to a step of so many ranks on one machine, by their number.

    The low end, because what is believed to be cheap is tried and then measured. Zero where the accelerator is not in
    the catalogue, and on CPUs: nothing is known of them beforehand.

    Args:
        accelerator: name of it, as torch tells.
        gradient_bytes: of all gradients.
        step_s: of one rank.
    """
    same = [gpu for name, gpu in catalogue().items() if _is_same(name, accelerator)]
    # Torch's name often leaves out the form of the card: the one with the fastest links is the low end.
    gpu = max(same, key=lambda each: each.nvlink, default=None)
    if gpu is None:
        return lambda workers: 0.0

    def exposed(workers: int) -> float:
        fabric = fabric_of(gpu, gpus=max(2, workers))
        group = Group(fabric=fabric, size=workers, local=workers, network=fabric)  # one machine: no network
        return max(0.0, all_reduce(group, gradient_bytes).low - _BACKWARD * step_s)

    return exposed


def _is_same(name: str, accelerator: str) -> bool:
    """Whether a name of the catalogue without memory and form, ``RTX-3090``, is in torch's, word by word."""
    parts = [part.lower() for part in name.split("-") if part not in ("SXM", "PCIe") and not part.endswith("GB")]
    words = accelerator.lower().replace("-", " ").split()
    return all(part in words for part in parts)

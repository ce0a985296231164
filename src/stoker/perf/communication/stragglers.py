"""Waiting for the slowest GPU of a step, as a share of computation."""

from __future__ import annotations

from typing import Literal

SHARED = ((2, 0.09, 0.05, 0.17),)


def slowest(gpus: int, cluster: Literal["dedicated", "shared"]) -> tuple[float, float, float]:
    """Likely, low and high share by which the slowest of so many is later than their mean."""
    if gpus == 1:
        return 0.0, 0.0, 0.0
    return (0.01, 0.0, 0.03) if cluster == "dedicated" else (0.1, 0.05, 0.17)

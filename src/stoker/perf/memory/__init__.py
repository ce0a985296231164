"""What a step needs of each GPU's memory, and whether it fits."""

from __future__ import annotations

from stoker.perf.memory.needs import PARTS, Fit, capacity, fits, needs

__all__ = ["PARTS", "Fit", "capacity", "fits", "needs"]

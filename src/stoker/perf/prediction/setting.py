"""The name under which :mod:`stoker.perf.strategy` was documented first."""

from __future__ import annotations

from stoker.perf.strategy import DataParallel, Machines, Strategy

__all__ = ["DataParallel", "Machines", "Strategy"]

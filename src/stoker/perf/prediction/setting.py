"""The first documented name of :mod:`stoker.perf.strategy`."""

from __future__ import annotations

from stoker.perf.strategy import DataParallel, Machines, Strategy

__all__ = ["DataParallel", "Machines", "Strategy"]

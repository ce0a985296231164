"""Where a step's time goes, on paper and measured, in one vocabulary; what an upgrade buys and what a job will cost."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker.perf.features.step import characterise

__all__ = ["characterise"]


def __getattr__(name: str) -> object:
    if name != "characterise":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Imported with the first use: only tracing needs torch.
    from importlib import import_module

    from stoker.core.extras import require

    require("torch", extra="torch")
    return import_module("stoker.perf.features.step").characterise

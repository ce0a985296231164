"""One planned piece of memory for what a step computes.

Compiled: `torch.compile(model, backend="stoker.arena")`, and `share` for models that are served in turn. Eager, on
CUDA: `use_planned_allocator`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker.train.arena.eager.calling import use_planned_allocator
    from stoker.train.arena.reporting import report
    from stoker.train.arena.sharing import share

__all__ = ["report", "share", "use_planned_allocator"]

_HOMES = {
    "report": "stoker.train.arena.reporting",
    "share": "stoker.train.arena.sharing",
    "use_planned_allocator": "stoker.train.arena.eager.calling",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Imported with the first use: torch's compiler is slow to import, and torch may be missing.
    from importlib import import_module

    from stoker.core.extras import require

    require("torch", extra="torch")
    return getattr(import_module(home), name)

"""stoker keeps deep-learning accelerators busy: elastic data workers for unmodified PyTorch programs.

As a library it offers ``DataLoader``, ``wrap``, ``feeding``, ``stats``, ``explain``, ``cut`` and ``stateless``; they
need torch, and are
imported with the first use, so that ``import stoker`` is fast and works without it; so is ``stoker.cache``, the data
cache. Nothing else is imported here: every child interpreter of a program under ``stoker run`` pays for it.
"""

from __future__ import annotations

from stoker._version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker.graph.marking import stateless
    from stoker.run.feeding import feeding
    from stoker.run.loaders.api import DataLoader, explain, stats, wrap
    from stoker.run.loaders.cut_facts import cut

__all__ = ["DataLoader", "__version__", "cut", "explain", "feeding", "stateless", "stats", "wrap"]

_HOMES = {
    "DataLoader": "stoker.run.loaders.api",
    "cut": "stoker.run.loaders.cut_facts",
    "explain": "stoker.run.loaders.api",
    "feeding": "stoker.run.feeding",
    "stateless": "stoker.graph.marking",
    "stats": "stoker.run.loaders.api",
    "wrap": "stoker.run.loaders.api",
}


def __getattr__(name: str) -> object:
    if name == "cache":
        from importlib import import_module

        return import_module("stoker.cache")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from stoker.core.extras import require

    require("torch", extra="torch")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

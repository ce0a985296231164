"""stoker keeps deep-learning accelerators busy: elastic data workers for unmodified PyTorch programs.

As a library it offers ``DataLoader``, ``wrap``, ``feeding``, ``stats`` and ``explain``; they need torch, and are
imported with the first use, so that ``import stoker`` is fast and works without it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from stoker._version import __version__

if TYPE_CHECKING:
    from stoker.run.feeding import feeding
    from stoker.run.library import DataLoader, explain, stats, wrap

__all__ = ["DataLoader", "__version__", "explain", "feeding", "stats", "wrap"]

_HOMES = {
    "DataLoader": "stoker.run.library",
    "explain": "stoker.run.library",
    "feeding": "stoker.run.feeding",
    "stats": "stoker.run.library",
    "wrap": "stoker.run.library",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(home)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from stoker.core.errors import MissingExtraError

        raise MissingExtraError(f"`stoker.{name}` needs torch; install it with `pip install torch`") from error
    value = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

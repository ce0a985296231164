"""The data cache: a read-through cache between any fsspec filesystem and the program, on one machine or many.

``names`` and ``versions`` say what a page is, ``policies`` how stale it may be; ``store`` keeps pages on disk,
``sources`` read the underlying stores and prove versions, ``filesystem`` is what programs see, ``cluster`` joins nodes.

As a library it offers ``install``, ``uninstall``, ``unroutable``, ``load_safetensors``, ``stream_safetensors`` and
``materialise``; they are imported with the first use.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker.cache.filesystem.routing import install, uninstall, unroutable
    from stoker.cache.folders import materialise
    from stoker.cache.models import load_safetensors, stream_safetensors

__all__ = ["install", "load_safetensors", "materialise", "stream_safetensors", "uninstall", "unroutable"]

_HOMES = {
    "install": ("filesystem.routing", ""),
    "load_safetensors": ("models", "torch"),
    "materialise": ("folders", ""),
    "stream_safetensors": ("models", "torch"),
    "uninstall": ("filesystem.routing", ""),
    "unroutable": ("filesystem.routing", ""),
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from stoker.core.extras import require

    module, needed = _HOMES[name]
    for package in ("fsspec", "xxhash"):
        require(package, extra="cache")
    if needed:
        require(needed, extra=needed)
    value = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""The data cache: a read-through cache between any fsspec filesystem and the program, on one machine or many.

``names`` and ``versions`` say what a page is, ``policies`` how stale it may be; ``store`` keeps pages on disk,
``sources`` read the underlying stores and prove versions, ``filesystem`` is what programs see, ``cluster`` joins nodes.

As a library it offers ``install``, ``uninstall``, ``load_safetensors``, ``stream_safetensors``, ``materialise``, and
``Rule``, ``Freshness`` and ``rules_of`` to say how stale paths may be; they are imported with the first use.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker.cache.filesystem.routing import install, uninstall
    from stoker.cache.models.folders import materialise
    from stoker.cache.models.loading import load_safetensors, stream_safetensors
    from stoker.cache.policies import Freshness, Rule
    from stoker.cache.rules_text import rules_of

__all__ = [
    "Freshness",
    "Rule",
    "install",
    "load_safetensors",
    "materialise",
    "rules_of",
    "stream_safetensors",
    "uninstall",
]

_HOMES = {
    "Freshness": "policies",
    "Rule": "policies",
    "install": "filesystem.routing",
    "load_safetensors": "models.loading",
    "materialise": "models.folders",
    "rules_of": "rules_text",
    "stream_safetensors": "models.loading",
    "uninstall": "filesystem.routing",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    from stoker.core.extras import require

    for package in ("fsspec", "xxhash"):
        require(package, extra="cache")
    if _HOMES[name] == "models.loading":
        require("torch", extra="torch")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

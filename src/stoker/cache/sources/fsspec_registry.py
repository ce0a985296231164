# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false, reportUnknownMemberType=false
"""The filesystem classes of protocols as they were before programs were routed through the cache.

The cache's own reads must not be routed.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Generator
from typing import Any

import fsspec
from fsspec.registry import _registry, known_implementations, registry

from stoker.core.patching import Patches

_replaced: dict[str, Any] = {}
"""Per protocol: a class, or the path of one that is not imported yet."""
_patches = Patches("reads URLs of stores through the cache")
_thread = threading.local()


@contextlib.contextmanager
def building() -> Generator[None]:
    """Filesystems that this thread makes meanwhile are the cache's own."""
    before = is_building()
    _thread.is_building = True
    try:
        yield
    finally:
        _thread.is_building = before


def is_building() -> bool:
    """Whether what this thread makes now is the cache's own, and not the program's."""
    return getattr(_thread, "is_building", False)


def filesystem_class(protocol: str) -> Any:
    """The class that reads a protocol's store directly.

    Args:
        protocol: as fsspec knows it.

    Raises:
        ValueError: the protocol is unknown.
        ImportError: its package is not installed.
    """
    found = _replaced.get(protocol)
    if found is None:
        return fsspec.get_filesystem_class(protocol)
    if isinstance(found, str):
        module, _, name = found.replace(":", ".").rpartition(".")
        found = _replaced[protocol] = getattr(importlib.import_module(module), name)
    return found


def replace(protocol: str, cls: str, build: Any) -> bool:
    """Registers another class for a protocol, and remembers the one there was.

    Args:
        protocol: as fsspec knows it.
        cls: path of the class; imported with the first use.
        build: gives the class now, for a protocol that is in use already.

    Returns:
        Whether fsspec knows the protocol.
    """
    if protocol in _replaced or (protocol not in registry and protocol not in known_implementations):
        return protocol in _replaced
    _replaced[protocol] = registry.get(protocol) or known_implementations[protocol]["class"]
    if protocol in registry:
        _patches.set_item(_registry, protocol, build(), "fsspec.registry")
    else:
        # The hint which package is missing stays the store's.
        known = {**known_implementations[protocol], "class": cls}
        _patches.set_item(known_implementations, protocol, known, "fsspec.registry")
    return True


def restore() -> None:
    """Registers all the former classes again."""
    _patches.restore()
    for protocol in _replaced:
        # fsspec registers what it imports by the path that it knew.
        if protocol in registry and registry[protocol].__module__.startswith("stoker."):
            _registry.pop(protocol)
    _replaced.clear()

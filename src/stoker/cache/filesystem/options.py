"""Finds options of a cached filesystem that nothing accepts: a typing error must not look like a valid setting."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Collection, Sequence
from typing import Any

_OF_FSSPEC = frozenset(
    ("skip_instance_cache", "use_listings_cache", "listings_expiry_time", "max_paths", "asynchronous", "loop",
     "batch_size", "auto_mkdir", "client_kwargs", "fo")
)  # fmt: skip
"""Options that fsspec's base classes accept."""
_HANDS_ON = frozenset(("http", "https", "sftp", "ssh", "webhdfs", "smb", "hf"))
"""Protocols whose filesystems pass unknown options to another library."""


def check_options(options: Collection[str], ours: Sequence[str], target: Any) -> None:
    """Raises for options that neither the cache nor the store's filesystem knows.

    Args:
        options: names that were given and are not the cache's.
        ours: those of the cached filesystem.
        target: class of the store's.

    Raises:
        TypeError: one is unknown.
    """
    if not options:
        return
    protocols = (target.protocol,) if isinstance(target.protocol, str) else target.protocol
    takes_any = not _HANDS_ON.isdisjoint(protocols)
    theirs = _of(target)
    for name in unnamed(options, target):
        near = difflib.get_close_matches(name, ours if takes_any else (*ours, *theirs), 1, 0.8)
        if takes_any and not near:
            continue
        hint = f"did you mean `{near[0]}`? " if near else ""
        raise TypeError(
            f"`{name}` must be an option of the cache ({', '.join(ours)}) or of {target.__name__} "
            f"({', '.join(theirs) or 'it has none'}); {hint}`target_options` are not checked"
        )


def unnamed(options: Collection[str], target: Any) -> list[str]:
    """Options that a filesystem's class does not name: it refuses them, or hands them on to a library that may.

    Args:
        options: names.
        target: the class.
    """
    theirs = _of(target)
    return [name for name in options if name not in theirs and name not in _OF_FSSPEC]


def _of(target: Any) -> list[str]:
    return _named(*(each.__init__ for each in target.__mro__))


def _named(*functions: Any) -> list[str]:
    """Names of parameters, in their order."""
    found = dict.fromkeys(
        parameter.name
        for function in functions
        for parameter in list(inspect.signature(function).parameters.values())[1:]
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    )
    return list(found)

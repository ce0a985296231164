# pyright: reportPrivateUsage=false, reportUnknownMemberType=false
# (the only module of a run that uses torch's private names)
"""What autograd saved, read without the hooks of the program.

``SYMBOLS`` is plain data: a test reads it even if torch lacks one of the names and this module can't be imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import torch

SYMBOLS = (
    # dotted name, purpose, since
    ("torch._C._autograd.SavedTensor", "what a node of the graph keeps for its backward pass", "before 2.6"),
)

_names: dict[type, tuple[str, ...]] = {}


def saved_of(node: Any) -> Iterator[Any]:
    """What a node of the autograd graph keeps, as it is kept; nothing where torch does not show it without hooks.

    ``SavedTensor.data`` (torch 2.13; older ones lack it) is what is kept: a tensor, or what a pack hook made of it.
    """
    kind = cast("type[Any]", type(node))
    if kind not in _names:
        _names[kind] = tuple(name for name in dir(node) if name.startswith("_raw_saved_"))
    saved: Any = cast("Any", torch._C)._autograd.SavedTensor
    for name in _names[kind]:
        try:
            kept: Any = getattr(node, name)
        except RuntimeError:  # freed by the backward pass
            continue
        several = cast("Sequence[Any]", kept) if isinstance(kept, list | tuple) else (kept,)
        for each in several:
            if isinstance(each, saved) and hasattr(each, "data"):
                yield each.data

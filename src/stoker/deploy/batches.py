"""Batches as loaders of users return them: their parts, whatever holds these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast


def parts_of(batch: Any, names: Sequence[str] = ()) -> list[Any]:
    """What a batch holds: one array or tensor for each argument of the model, and labels after them if there are any.

    Args:
        batch: a tuple or a list of these, a dict of the model's arguments, or the only argument itself.
        names: of the model's arguments, in whose order a dict is taken; what it holds besides follows.
    """
    if isinstance(batch, Mapping):
        given = dict(cast("Mapping[Any, Any]", batch))
        return [given.pop(name) for name in names if name in given] + list(given.values())
    return list(cast("Sequence[Any]", batch)) if isinstance(batch, (tuple, list)) else [batch]

"""Batches as loaders of users return them: their parts, whatever holds these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast


def parts_of(batch: Any) -> list[Any]:
    """What a batch holds: one array or tensor for each argument of the model, and labels after them if there are any.

    Args:
        batch: a tuple or a list of these, a dict of the model's arguments, or the only argument itself.
    """
    if isinstance(batch, Mapping):
        return list(cast("Mapping[Any, Any]", batch).values())
    return list(cast("Sequence[Any]", batch)) if isinstance(batch, (tuple, list)) else [batch]

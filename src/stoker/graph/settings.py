"""The settings of the automatic cut."""

from __future__ import annotations

from typing import Annotated, Literal

from stoker.core.settings import Settings, choice

_CUT = "move what depends on the batch alone to data workers: where it pays, all, or nothing"


class CutSettings(Settings, frozen=True, kw_only=True):
    """What is moved from training steps to data workers."""

    cut: Annotated[Literal["exact", "always", "off"], choice(_CUT)] = "exact"

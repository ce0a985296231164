"""How a program's loaders are (or would be) served and why: what `stoker explain` shows, for people and programs."""

from __future__ import annotations

import msgspec

from stoker.records.events import LoaderOpened


class Explanation(msgspec.Struct, kw_only=True):
    """The loaders of one process."""

    program: list[str]
    """The program and its arguments."""
    loaders: list[LoaderOpened]
    """One entry a loader; ``t_s`` is when this was found."""
    at: str = ""
    """``file.py:line`` of the ``iter(loader)`` at which the program was ended; empty for a run's own records."""
    first: int = -1
    """Number of the loader that the program was about to iterate over."""
    cuts: dict[int, str] = {}
    """What was moved out of a run's loop over each loader, by the loader's number; `stoker graph` has more."""
    exchanges: list[str] = []
    """How a run exchanged the gradients of each replicated module; `stoker exchange` has more."""
    fits: list[str] = []
    """What made the run fit its memory; `stoker report` has more."""
    rank: int = 0
    world_size: int = 1

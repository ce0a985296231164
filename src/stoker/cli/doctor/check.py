"""The result of one check of `stoker doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Check:
    """One finding about the machine."""

    name: str
    status: Literal["ok", "warn", "fail"]
    found: str
    """What was found."""
    consequence: str = ""
    """The consequence for a run; empty if all is well."""
    remedy: str = ""
    """What to do about it."""
    details: tuple[str, ...] = ()
    """Further lines."""

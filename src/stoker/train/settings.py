"""The settings of the exchange between the replicas of a program."""

from __future__ import annotations

from typing import Annotated, Literal

from stoker.core.settings import Option, Settings, choice, memory

LEAVES = ("split", "compress")
"""What changes sums, or what an optimizer sees, beyond rounding."""
_COMM = (
    "exchange gradients as it pays best, exactly (auto), as torch does it (off), or average the ranks' models instead"
)
_ALLOW = "methods that auto may use though they are not exact or not safe by themselves: split, compress or both"


def leaves_of(text: str) -> frozenset[str]:
    """The words of a list with commas."""
    return frozenset(word for word in (part.strip() for part in text.split(",")) if word)


def _is_leave(value: object) -> bool:
    return isinstance(value, str) and bool(leaves_of(value)) and leaves_of(value) <= set(LEAVES)


class ExchangeSettings(Settings, frozen=True, kw_only=True):
    """How a program's replicas exchange their gradients."""

    comm: Annotated[Literal["off", "auto", "average"], choice(_COMM)] = "off"
    comm_allow: Annotated[
        str | None,
        Option(form="METHODS", text=_ALLOW, rule="`split`, `compress`, `split,compress` or `auto`", accepts=_is_leave),
    ] = None


_FIT = (
    "make the program fit its memory without changing what it computes (auto), say how (report), or leave it as it is"
)
_SIZE = "memory that --fit keeps to, such as 20GB (default: the GPU's)"


class FitSettings(Settings, frozen=True, kw_only=True):
    """Whether a program is made to fit, and into what."""

    fit: Annotated[Literal["off", "report", "auto"], choice(_FIT)] = "off"
    device_memory_bytes: Annotated[int | None, memory(_SIZE)] = None

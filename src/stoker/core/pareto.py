"""What no other beats: the Pareto front of things by any number of figures, the less the better; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

_Thing = TypeVar("_Thing")
Figures = Sequence[float]


def beats(one: Figures, other: Figures) -> bool:
    """Whether figures are at most another's everywhere, and less somewhere."""
    return no_worse(one, other) and tuple(one) != tuple(other)


def no_worse(one: Figures, other: Figures) -> bool:
    """Whether figures are at most another's everywhere."""
    return all(mine <= yours for mine, yours in zip(one, other, strict=True))


def front(
    things: Iterable[_Thing], figures: Callable[[_Thing], Figures], preference: Callable[[_Thing], Any] | None = None
) -> list[_Thing]:
    """The things that no other beats, sorted by their figures; of those with equal figures one.

    Takes O(n log n) comparisons for two figures, O(n times the front) for more.

    Args:
        things: in any order.
        figures: of a thing; as many for each, none NaN.
        preference: which of equals stays: the least; the first by default.
    """
    held = [(tuple(figures(thing)), thing) for thing in things]
    held.sort(key=lambda pair: (pair[0], preference(pair[1]) if preference else 0))
    found: list[tuple[tuple[float, ...], _Thing]] = []
    for own, thing in held:
        # Nothing beats what comes before it in this order; of two figures, the last kept has the least second.
        against = found[-1:] if len(own) <= 2 else found
        if not any(no_worse(other, own) for other, _ in against):
            found.append((own, thing))
    return [thing for _, thing in found]

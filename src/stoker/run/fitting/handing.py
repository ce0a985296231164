"""How plans of ranks are handed to them, and the link that is assumed until they know theirs. Light to import."""

from __future__ import annotations

from stoker.perf.communication.links import Interconnect, probed, stated

FROM_FIRST = "(of the first rank)"
"""In the place of a file with plans, on ranks that hear of them."""
RANKED = ".ranks.json"
"""End of the name of a file with plans of ranks."""


def assumed_link() -> Interconnect:
    """What lies between ranks until they have measured it: 10 Gbit/s (assumed)."""
    return stated(1.25e9, 5e-5)


def link_of(points: list[tuple[float, float]], ranks: int) -> Interconnect | None:
    """The link between ranks, from timed sums; None where they say nothing."""
    try:
        return probed(points, ranks)
    except ValueError:
        return None

"""What a gateway finds out about the link to a host, from its answers to pings."""

from __future__ import annotations

import pytest

from stoker.backends.remote.gateway.link import Link
from stoker.backends.remote.messages import SentSoFar


def link_after(full_frac: float, *, pongs: int = 7) -> Link:
    """A link that has carried 23 MB and 6 batches a second, and for such a share of the time could have no more."""
    link = Link("b:7071", "b:7071", b"", None)
    for number in range(pongs):
        at_s = 0.5 * number
        link.pongs.append((at_s, SentSoFar(int(23e6 * at_s), int(6 * at_s), full_frac * at_s)))
    return link


def test_a_full_link_is_told_with_what_it_carries() -> None:
    assert link_after(0.95).limit == "the link to `b:7071` carries 23 MB/s, 6 batches/s"


@pytest.mark.parametrize("link", [link_after(0.5), link_after(0.95, pongs=5)], ids=["has room", "is new"])
def test_another_is_not(link: Link) -> None:
    assert link.limit == ""


def test_nor_one_that_carries_nothing() -> None:
    link = Link("b:7071", "b:7071", b"", None)
    link.pongs.extend((0.5 * number, SentSoFar(0, 0, 0.5 * number)) for number in range(7))
    assert link.limit == ""

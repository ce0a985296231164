"""What `stoker cache status --join` makes of workers, as they say they are."""

from __future__ import annotations

from typing import Any

import pytest

from stoker._version import __version__
from stoker.cache.cluster.membership.ring import Member
from stoker.cli.cache import ring
from stoker.cli.cache.ring import RingNode, render_ring
from stoker.ui.report_text import Style

MEMBER = Member(id="a:7070", addresses=("tcp://a:7070",))
LATELY = {"over_s": 10.0, "hit_ratio": None, "sent_bytes_per_s": 0, "fetched_bytes_per_s": 0, "moved_bytes_per_s": 0}
STATUS: dict[str, Any] = {
    "version": __version__, "draining": False, "found": 1, "missed": 1, "sent_bytes": 0, "fetched_bytes": 0,
    "clients": 1, "lately": LATELY,
}  # fmt: skip
OTHER = {name: value for name, value in STATUS.items() if name not in ("found", "lately")} | {"version": "0.0.9"}


def test_a_worker_of_another_version_is_named_with_what_to_do() -> None:
    text = "\n".join(render_ring(1, [RingNode(MEMBER, STATUS), RingNode(MEMBER, OTHER)], Style()))
    assert "a:7070       1  alive" in text
    assert "a:7070       1  other" in text
    assert f"is of stoker 0.0.9 and says nothing of found, lately; restart it with {__version__}" in text


@pytest.mark.parametrize(("status", "expected"), [(STATUS, 0), (STATUS | {"draining": True}, 0), (None, 1), (OTHER, 1)])
def test_a_worker_that_is_lost_or_not_understood_is_in_the_exit_status(
    monkeypatch: pytest.MonkeyPatch, status: dict[str, Any] | None, expected: int
) -> None:
    monkeypatch.setattr(ring, "_client", lambda settings: None)
    monkeypatch.setattr(ring, "_ask", lambda client, join: (1, [RingNode(MEMBER, STATUS), RingNode(MEMBER, status)]))
    assert ring.show_ring(ring.CacheSettings.of(cache_join="static:a:7070"), as_json=True) == expected

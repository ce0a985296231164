"""A protocol for the tests."""

from __future__ import annotations

import enum

from stoker.wire.framing import Framing


class Kind(enum.IntEnum):
    """Of frames."""

    SMALL = 1
    """At most 100 bytes."""
    PLACED = 2
    """The end of its body goes where its first bytes say."""
    LAST = 3


MAX_BYTES = 1 << 24
FRAMING = Framing("<HBBIQ", 0x1234, 7, Kind, MAX_BYTES, {Kind.SMALL: 100}, hints=("; who is it?", "; run one version"))
"""With a note of eight bytes, as the cache's."""
SHORT_NOTE = Framing("<HBBQBxxx", 0x1235, 7, Kind, MAX_BYTES, {Kind.SMALL: 100})
"""As the feed's."""

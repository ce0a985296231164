"""Where an iteration is in its life."""

from __future__ import annotations

import enum


class Phase(enum.Enum):
    """Where an iteration is in its life."""

    OPENING = "opening"
    """Its workers are being started."""
    PROBING = "probing"
    """They work, and its samples are compared: the tier is not settled."""
    FEEDING = "feeding"
    DRAINING = "draining"
    """The program has left it; workers still answer for leases of it."""
    ENDED = "ended"
    """Nothing of it is left."""

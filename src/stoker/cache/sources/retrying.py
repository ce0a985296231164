"""Retries after a wrong answer of a store: how often, and how long to wait between."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from stoker.core.errors import SourceReadError

ATTEMPTS = 4
FIRST_PAUSE_S = 0.05
"""Doubles with each attempt, and varies by half, so that clients that failed together do not return together."""

_Answer = TypeVar("_Answer")


def retried(ask: Callable[[], _Answer], *, pause: Callable[[float], None] = time.sleep) -> _Answer:
    """Calls a store, with retries while its answer is wrong.

    Args:
        ask: raises :class:`SourceReadError` for an answer that another attempt may cure; other errors pass.
        pause: waits for so many seconds.

    Raises:
        SourceReadError: the last answer was wrong, too.
    """
    for attempt in range(ATTEMPTS - 1):
        try:
            return ask()
        except SourceReadError:
            pause(FIRST_PAUSE_S * 2**attempt * random.uniform(0.5, 1.5))
    return ask()

"""Waiting for what comes about in other processes and threads."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

POLL_S = 0.005
"""How often a condition is looked at: `/proc` and the state of others have no events to wait on."""


def await_that(what: str, condition: Callable[[], Any], timeout_s: float = 20.0) -> Any:
    """The first true value of a condition; fails with ``what`` when it stays false."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(POLL_S)
    return value

"""Work of low priority: its result or its error, and a main thread as before."""

from __future__ import annotations

import os
import sys

import pytest

from stoker.core.processes.background import in_background


def niceness() -> int:
    """Of the calling thread."""
    return os.getpriority(os.PRIO_PROCESS, 0)


def test_work_yields_to_others_and_the_caller_does_not() -> None:
    before = niceness()
    assert in_background(niceness) == min(before + 10, 19)
    assert niceness() == before


def test_what_work_raises_is_raised() -> None:
    def fails() -> None:
        raise LookupError("nothing there")

    with pytest.raises(LookupError, match="nothing there"):
        in_background(fails)
    with pytest.raises(SystemExit):
        in_background(lambda: sys.exit(3))

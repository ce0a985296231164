"""Which integration tests share a process of pytest-xdist, and which of them go out first.

The tests of a file share a process, for what a file has computed is kept there. Where each test starts programs of its
own, each is a part of its own instead, so that the processes end at about the same time. It is what ``--dist loadfile``
means here. The longest parts go first, by what ``tests/durations.json`` says of earlier runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from xdist.scheduler import LoadScopeScheduling

from tests.durations import SAVED, read

SPREAD = (
    "tests/cli/test_explain.py",
    "tests/cut/test_ways.py",
    "tests/docs/",
    "tests/ecosystem/test_distributed.py",
    "tests/faults/test_endings.py",
    "tests/faults/test_forks.py",
    "tests/faults/test_leaks.py",
)
"""Files and folders whose tests share nothing."""
FIRST = ("tests/faults/test_leaks.py", "tests/faults/test_limits.py", "tests/faults/test_planted.py")
"""They fork the process of the tests, which grows, and gets threads, with all that the others import and start."""


def part_of(test: str) -> str:
    """The part that a test belongs to."""
    return test if test.startswith(SPREAD) else test.partition("::")[0]


def longest_of(parts: Mapping[str, Iterable[str]], durations_s: Mapping[str, float]) -> str:
    """The part that takes longest by what is saved: of its long tests, or of its file, whichever is more.

    A file is saved as the last run had it, which may have left most of its tests out. Of a new file nothing is known,
    and it goes out early lest it end last.

    Args:
        parts: the tests of each.
        durations_s: seconds of files and of long tests.
    """

    def seconds(part: str) -> float:
        of_file = durations_s.get(part.partition("::")[0], math.inf)
        return max(of_file, sum(durations_s.get(test, 0.0) for test in parts[part]))

    return max(parts, key=lambda part: (part.startswith(FIRST), seconds(part)))


class Parts(LoadScopeScheduling):
    """Hands out parts rather than files, long ones first."""

    def __init__(self, config: Any, log: Any = None) -> None:
        super().__init__(config, log)
        self._durations_s: dict[str, float] = read(SAVED)

    def _split_scope(self, nodeid: str) -> str:
        return part_of(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        self.workqueue.move_to_end(longest_of(self.workqueue, self._durations_s), last=False)
        super()._assign_work_unit(node)

"""Which integration tests share a process of pytest-xdist, and which of them go out first.

The tests of a file share a process, for what a file has computed is kept there. Where each test starts programs of its
own, each is a part of its own instead, so that the processes end at about the same time. It is what ``--dist loadfile``
means here.
"""

from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadScopeScheduling

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
LONGEST = (
    "tests/faults/test_leaks.py",  # forks the process of the tests, which grows with all that they import
    "tests/faults/",
    "tests/contract/",
    "tests/cut/test_programs.py",
    "tests/ecosystem/",
    "tests/examples/",
    "tests/docs/",
    "tests/benchmarks/",
    "tests/cut/",
)
"""What takes most time, longest first, as measured; the small ones after them even out the end."""


def part_of(test: str) -> str:
    """The part that a test belongs to."""
    return test if test.startswith(SPREAD) else test.partition("::")[0]


def rank_of(part: str) -> int:
    """Small for parts that should begin early."""
    return next((rank for rank, start in enumerate(LONGEST) if part.startswith(start)), len(LONGEST))


class Parts(LoadScopeScheduling):
    """Hands out parts rather than files, long ones first."""

    def _split_scope(self, nodeid: str) -> str:
        return part_of(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        self.workqueue.move_to_end(min(self.workqueue, key=rank_of), last=False)
        super()._assign_work_unit(node)

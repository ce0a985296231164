"""What pinned workers have made is made again in the order in which they made it."""

from __future__ import annotations

from stoker.feed.program import WorkItem
from stoker.feed.state.history import History


def work(number: int) -> WorkItem:
    return WorkItem(indices=[number], start=number)


def test_what_was_made_before_comes_first_whatever_its_number() -> None:
    history = History()
    history.assume([(n, work(n)) for n in (0, 1, 2, 7)], [0, 1, 1, 1])
    history.made(5, work(5), 99, 1)
    history.made(3, work(3), 99, 0)
    assert [seq for seq, _ in history.of(1)] == [1, 2, 7, 5]
    assert [seq for seq, _ in history.of(0)] == [0, 3]

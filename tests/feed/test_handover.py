"""Workers of a candidate go on as pinned ones only if they have made what pinned ones would have made."""

from __future__ import annotations

import pytest

from stoker.feed.state.handover import Handover
from tests.feed.test_ledger import Table


def begun(places: list[int], given: list[int]) -> tuple[Handover, list[int], Table]:
    """A handover over items 0, 1, … that were given to these workers; whom it asks."""
    table, handover = Table(num_workers=0), Handover()
    for number, place in enumerate(places):
        table.ledger.born(10 + number, place)
    for worker in given:
        table.lease(table.add(), worker)
    table.add()
    return handover, handover.begin(table.ledger, 2, table.items), table


def test_all_agree() -> None:
    handover, asked, table = begun([0, 1], [10, 11, 10])
    assert asked == [10, 11]
    handover.answered(10, agreed=True)
    assert handover.result is None
    handover.answered(11, agreed=True)
    assert handover.result is True
    assert table.items.next_waiting(0) is None  # item 3 is the second worker's from here on
    assert table.items.next_waiting(1) is not None


@pytest.mark.parametrize(
    ("places", "given"),
    [([0, 1], [10, 10]), ([0, 1], [11]), ([0, 0], [10]), ([0], [10]), ([0, 1, 0], [10, 11])],
    ids=["another's item", "wrong start", "a place twice", "a place without worker", "one too many"],
)
def test_workers_that_did_something_else_are_not_asked(places: list[int], given: list[int]) -> None:
    handover, asked, _ = begun(places, given)
    assert not asked
    assert handover.result is False


def test_one_refusal_or_loss_is_enough() -> None:
    handover, *_ = begun([0, 1], [10, 11])
    handover.answered(10, agreed=False)
    handover.answered(11, agreed=True)
    assert handover.result is False
    handover, *_ = begun([0, 1], [10, 11])
    handover.lost(11)
    assert handover.result is False

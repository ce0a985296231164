"""Workers of a candidate go on as pinned ones only if they have made what pinned ones would have made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from torch.utils.data import default_collate

from stoker.feed.handover import Handover
from stoker.feed.leases import LeaseTable
from stoker.feed.program import Program, WorkerIdentity, WorkItem

PROGRAM = Program(
    dataset=[], collate_fn=default_collate, worker_init_fn=None, is_iterable=False, auto_collation=True,
    drop_last=False, declared_workers=2,
)  # fmt: skip


@dataclass
class Worker:
    identity: WorkerIdentity


@dataclass
class Workers:
    """What a handover asks of a crew."""

    places: list[int]
    asked: list[int] = field(default_factory=list[int])

    def active(self) -> list[Any]:
        return [Worker(WorkerIdentity(number=10 + n, worker_id=p, board_slot=n)) for n, p in enumerate(self.places)]

    def pin(self, member: Any) -> None:
        self.asked.append(member.identity.number)


def begun(places: list[int], given: list[int]) -> tuple[Handover, Workers, LeaseTable]:
    """A handover over a table whose items 0, 1, … were given to these workers."""
    table, workers, handover = LeaseTable(), Workers(places), Handover()
    for worker in given:
        table.lease(table.add(WorkItem(indices=[0], start=0)), worker)
    table.add(WorkItem(indices=[0], start=0))
    crew: Any = workers
    handover.begin(crew, PROGRAM, table)
    return handover, workers, table


def test_all_agree() -> None:
    handover, workers, table = begun([0, 1], [10, 11, 10])
    assert workers.asked == [10, 11]
    handover.answered(10, agreed=True)
    assert handover.result is None
    handover.answered(11, agreed=True)
    assert handover.result is True
    assert table.next_waiting(0) is None  # item 3 is the second worker's from here on
    assert table.next_waiting(1) is not None


@pytest.mark.parametrize(
    ("places", "given"),
    [([0, 1], [10, 10]), ([0, 1], [11]), ([0, 0], [10]), ([0], [10]), ([0, 1, 0], [10, 11])],
    ids=["another's item", "wrong start", "a place twice", "a place without worker", "one too many"],
)
def test_workers_that_did_something_else_are_not_asked(places: list[int], given: list[int]) -> None:
    handover, workers, _ = begun(places, given)
    assert not workers.asked
    assert handover.result is False


def test_one_refusal_or_loss_is_enough() -> None:
    handover, *_ = begun([0, 1], [10, 11])
    handover.answered(10, agreed=False)
    handover.answered(11, agreed=True)
    assert handover.result is False
    handover, *_ = begun([0, 1], [10, 11])
    handover.lost(11)
    assert handover.result is False

"""From the requests of two recorded steps to the plan of a step; pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from stoker.core.placement.offsets import place_buffers
from stoker.train.arena.eager.policy import PlannedRequest, rounded


class MemoryEvent(NamedTuple):
    """A request, the end of a block, or of a step.

    Attributes:
        number: of the block; 0 for the end of a step.
        nbytes: asked for.
    """

    kind: Literal["allocate", "free", "step"]
    number: int = 0
    nbytes: int = 0


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The requests of a step with their places.

    Attributes:
        nbytes: of the arena.
        bound: most bytes of planned blocks alive at once.
    """

    requests: tuple[PlannedRequest, ...]
    nbytes: int
    bound: int


@dataclass(slots=True)
class _Block:
    """What one request of the last step got; times are events since the step's beginning."""

    nbytes: int
    birth: int
    death: int | None = None


def plan_step(events: Sequence[MemoryEvent]) -> StepPlan:
    """The plan of a step like the last one that is complete.

    Time goes round: what the step leaves behind and the next one frees before it asks for the like again, as gradients,
    has a life across the end of the step. So that such lives have places too, the round is cut where fewest bytes are
    alive. What lives longer gets ordinary blocks.

    Raises:
        ValueError: fewer than two steps are complete.
    """
    ends = [place for place, event in enumerate(events) if event.kind == "step"]
    if len(ends) < 2:
        raise ValueError(f"`events` must hold at least two complete steps, got {len(ends)}")
    first, last = ends[-2] + 1, ends[-1]
    step = events[first:last]
    blocks = _blocks_of(step)
    _close(blocks, events[:first], step)
    length = max(1, len(step))
    lives = [(each.nbytes, each.birth, each.death) for each in blocks if each.death is not None]
    cut = _least_alive(lives, length)
    chosen: list[int] = []
    placed_lives: list[tuple[int, int, int]] = []
    for number, each in enumerate(blocks):
        if each.death is None:
            continue
        birth = (each.birth - cut) % length
        death = birth + each.death - each.birth
        if death <= length:
            chosen.append(number)
            placed_lives.append((each.nbytes, birth, death))
    placed = place_buffers(placed_lives)
    at = dict(zip(chosen, placed.offsets, strict=True))
    requests = tuple(PlannedRequest(rounded(each.nbytes), at.get(number)) for number, each in enumerate(blocks))
    return StepPlan(requests, placed.size, placed.bound)


def _blocks_of(step: Sequence[MemoryEvent]) -> list[_Block]:
    blocks: list[_Block] = []
    alive: dict[int, _Block] = {}
    for time, event in enumerate(step):
        if event.kind == "allocate":
            alive[event.number] = _Block(event.nbytes, time)
            blocks.append(alive[event.number])
        elif event.kind == "free" and event.number in alive:
            alive.pop(event.number).death = time
    return blocks


def _close(blocks: Sequence[_Block], before: Sequence[MemoryEvent], step: Sequence[MemoryEvent]) -> None:
    """Ends the lives of blocks that the step leaves, where it freed their like of the step before.

    Blocks of one size are told apart by the order of their requests.
    """
    known = {event.number: event.nbytes for event in before if event.kind == "allocate"}
    order = {number: place for place, number in enumerate(known)}
    freed: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for time, event in enumerate(step):
        if event.kind == "free" and event.number in known:
            freed[rounded(known[event.number])].append((order[event.number], time))
    left: defaultdict[int, list[_Block]] = defaultdict(list)
    for each in blocks:
        if each.death is None:
            left[rounded(each.nbytes)].append(each)
    for size, outliving in left.items():
        times = [time for _, time in sorted(freed[size])][-len(outliving) :]
        if len(times) != len(outliving):
            continue  # some of them stay for good, and nothing tells which
        for each, time in zip(outliving, times, strict=True):
            if time <= each.birth:  # else two of a kind are alive at once, in turn: one place would not do
                each.death = time + len(step)


def _least_alive(lives: Sequence[tuple[int, int, int | None]], length: int) -> int:
    """The time of the round at which fewest bytes are alive."""
    changes = [0] * (length + 1)
    for nbytes, birth, death in lives:
        assert death is not None
        changes[birth] += nbytes
        changes[min(death, length)] -= nbytes
        if death > length:
            changes[0] += nbytes
            changes[death - length] -= nbytes
    alive, totals = 0, list[int]()
    for change in changes[:length]:
        alive += change
        totals.append(alive)
    return min(range(length), key=totals.__getitem__)

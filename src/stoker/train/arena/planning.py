"""One plan over a forward graph, what it saves, and the backward graph: which buffers lie where in the arena; pure.

Under AOTAutograd saved activations are outputs of the forward graph and gradients outputs of the backward graph. Plans
of each graph alone would therefore hold next to nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from stoker.core.placement.offsets import place_buffers
from stoker.records.arena import ArenaOutside, ArenaPlan
from stoker.train.arena.recording import Buffer, GraphRecording, leaves_in

RETURNED, GRADIENT = "returned to the program", "a gradient, or returned by the backward pass"
BESIDE = "made together with what lies outside"


class PlacedLife(NamedTuple):
    """A buffer over the step: calls of the forward graph are numbered first, those of the backward graph after them."""

    buffer: Buffer
    birth: int
    death: int
    outside: str


@dataclass(frozen=True, slots=True)
class ArenaLayout:
    """Where buffers of a pair of graphs lie.

    Attributes:
        forward: bytes from the arena's start by buffer of the forward graph.
        backward: the same for the backward graph; what the forward graph saved lies where that put it.
        nbytes: of the arena.
        record: what people are shown of it.
    """

    forward: Mapping[int, int]
    backward: Mapping[int, int]
    nbytes: int
    record: ArenaPlan


@dataclass(slots=True)
class _Step:
    """Lives of both graphs, and which buffer of the backward graph is which of the forward graph."""

    forward: dict[int, PlacedLife]
    backward: dict[int, PlacedLife] = field(default_factory=dict[int, PlacedLife])
    saved: dict[int, int] = field(default_factory=dict[int, int])


def laid_out(
    forward: GraphRecording, num_returned: int, backward: GraphRecording | None, name: str = ""
) -> ArenaLayout:
    """The plan of a step.

    Args:
        forward: of its forward graph.
        num_returned: how many of its results are the program's; the others are saved for the backward pass.
        backward: of its backward graph; None: there is none.
        name: of the graphs, for people.
    """
    step = _step(forward, num_returned, backward)
    lives = [*step.forward.values(), *step.backward.values()]
    inside = [life for life in lives if not life.outside]
    placed = place_buffers([(life.buffer.nbytes, life.birth, life.death) for life in inside])
    # By identity: two buffers may be alike.
    at = {id(life.buffer): offset for life, offset in zip(inside, placed.offsets, strict=True)}
    in_forward = {number: at[id(life.buffer)] for number, life in step.forward.items() if not life.outside}
    in_backward = {number: at[id(life.buffer)] for number, life in step.backward.items() if not life.outside}
    in_backward |= {number: in_forward[source] for number, source in step.saved.items() if source in in_forward}
    return ArenaLayout(in_forward, in_backward, placed.size, _described(name, lives, placed.size, placed.bound))


def _step(forward: GraphRecording, num_returned: int, backward: GraphRecording | None) -> _Step:
    returned = forward.returns(0, num_returned)
    count = len(forward.nodes)
    lives = {
        number: PlacedLife(each, each.birth, count, RETURNED)
        if number in returned
        else PlacedLife(each, each.birth, each.death, each.outside)
        for number, each in enumerate(forward.buffers)
        if each.birth >= 0  # what was passed in is the program's, or a constant of the graph
    }
    step = _Step(lives)
    if backward is not None:
        step.saved = saved_buffers(forward, num_returned, backward)
        gradients = backward.returns(0)
        _outlive(step, backward, gradients, count)
        step.backward = {
            number: PlacedLife(
                each, each.birth + count, each.death + count, GRADIENT if number in gradients else each.outside
            )
            for number, each in enumerate(backward.buffers)
            if each.birth >= 0
        }
        _together(step.backward, backward)
    _together(step.forward, forward)
    return step


def _together(lives: dict[int, PlacedLife], recording: GraphRecording) -> None:
    """Leaves all results of a call outside if one of them is: the call is made one way or the other."""
    for place, node in enumerate(recording.nodes):
        numbers = [leaf.buffer for leaf in leaves_in(recording.leaves.get(node.name))]
        own = [number for number in numbers if number in lives and recording.buffers[number].birth == place]
        if own and (-1 in numbers or any(lives[number].outside for number in own)):
            for number in own:
                lives[number] = lives[number]._replace(outside=lives[number].outside or BESIDE)


def _outlive(step: _Step, backward: GraphRecording, gradients: set[int], count: int) -> None:
    """Lets what was saved live up to its last use in the backward graph."""
    unseen = {number for number, life in step.forward.items() if life.death >= count} - set(step.saved.values())
    for source in unseen:
        # The backward graph may take it under another name: nobody can say for how long.
        life = step.forward[source]
        reason = life.outside or "saved under another name"
        step.forward[source] = life._replace(death=count + len(backward.nodes), outside=reason)
    for number, source in step.saved.items():
        life = step.forward[source]
        reason = life.outside or (GRADIENT if number in gradients else "")
        death = max(life.death, count + backward.buffers[number].death)
        step.forward[source] = life._replace(death=death, outside=reason)


def saved_buffers(forward: GraphRecording, num_returned: int, backward: GraphRecording) -> dict[int, int]:
    """By buffer that the backward graph was called with: the one of the forward graph that was saved.

    They are the same where name and layout are.
    """
    found: dict[int, int] = {}
    arguments = {node.name for node in backward.nodes if node.op == "placeholder"}
    for name in forward.returned[num_returned:]:
        if name is None or name not in arguments:
            continue
        ours, theirs = list(leaves_in(forward.leaves.get(name))), list(leaves_in(backward.leaves.get(name)))
        for one, other in zip(ours, theirs, strict=False):
            alike = replace(one, buffer=0) == replace(other, buffer=0)
            made = one.buffer >= 0 and forward.buffers[one.buffer].birth >= 0
            if alike and made and other.buffer >= 0:
                found[other.buffer] = one.buffer
    return found


def _described(name: str, lives: Sequence[PlacedLife], nbytes: int, bound: int) -> ArenaPlan:
    """What the plan amounts to at the moment when activations and temporaries take most."""
    counted = [life for life in lives if life.birth >= 0 and life.outside != GRADIENT]
    peak = _peak(counted)
    alive = [life for life in counted if life.birth <= peak < life.death]
    inside = sum(life.buffer.nbytes for life in alive if not life.outside)
    outside = Counter[tuple[str, str]]()
    for life in alive:
        if life.outside:
            outside[life.buffer.maker, life.outside] += life.buffer.nbytes
    return ArenaPlan(
        name=name,
        arena_bytes=nbytes,
        bound_bytes=bound,
        peak_bytes=sum(life.buffer.nbytes for life in alive),
        inside_bytes=inside,
        gradient_bytes=sum(life.buffer.nbytes for life in lives if life.outside == GRADIENT and life.birth >= 0),
        num_planned=sum(not life.outside for life in lives),
        outside=[
            ArenaOutside(operator=maker, reason=reason, peak_bytes=count)
            for (maker, reason), count in outside.most_common()
        ],
    )


def _peak(lives: Sequence[PlacedLife]) -> int:
    """The call at which most bytes are alive."""
    changes: Counter[int] = Counter()
    for life in lives:
        changes[life.birth] += life.buffer.nbytes
        changes[life.death] -= life.buffer.nbytes
    most, at, alive = 0, 0, 0
    for time in sorted(changes):
        alive += changes[time]
        if alive > most:
            most, at = alive, time
    return at

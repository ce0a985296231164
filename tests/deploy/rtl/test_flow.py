"""What nodes make and take, counted; depths of FIFOs against a design played word by word."""

from collections import deque
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.deploy.rtl.depth import full_speed_depths, least_depths
from stoker.deploy.rtl.flow import Flow, JoinedFlow, ResizedFlow, RowFlow, ThroughFlow
from stoker.deploy.rtl.geometry import Windows
from stoker.deploy.rtl.mapping import lower
from stoker.deploy.rtl.structure import Structure
from tests.deploy.rtl.nets import any_net, random_foldings, residual_digits

FLOWS = (
    RowFlow(Windows(size=(5, 4), channels=2, kernel=(3, 3), padding=(1, 1, 1, 1)), 8, 12, 5, 4),
    RowFlow(Windows(size=(5, 4), channels=2, kernel=(2, 2), stride=(2, 2)), 8, 4, 5, 4),
    RowFlow(Windows(size=(4, 4), channels=1, stride=(3, 3)), 4, 2, 7, 2),
    ThroughFlow(2, 3),
    ResizedFlow(1, 4),
    ResizedFlow(6, 2),
    JoinedFlow(2, 3),
)


@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: type(flow).__name__)
@given(left=st.integers(0, 300))
def test_what_must_be_taken_for_words_to_leave_is_the_least_that_makes_them(flow: Flow, left: int) -> None:
    needed = flow.consumed(np.array([left]))
    assert flow.produced(needed)[0] >= left
    for at, each in enumerate(needed):
        if each[0]:
            less = [one - (other == at) for other, one in enumerate(needed)]
            assert flow.produced(less)[0] < left
    for taken, held in zip(needed, flow.accepted(np.array([left])), strict=True):
        assert held[0] >= taken[0]


def stops(structure: Structure, samples: int = 2) -> bool:
    """Plays a design without time: whether it stops before all samples are through.

    Nodes have no room of their own but what must be gathered to make the next word; a word leaves a node when all
    readers have taken the one before.
    """
    readers = {name: structure.readers(name) for name in structure.nodes}
    taken = {(name, at): 0 for name, node in structure.nodes.items() for at in range(len(node.sources))}
    offered = dict.fromkeys(structure.nodes, 0)
    """Words that a node has put out; the last of them may not have been taken by all."""
    queues = {name: deque[int]() for name in structure.fifos}

    def all_took(name: str) -> bool:
        return all(not reader or taken[reader, at] >= offered[name] for reader, at in readers[name])

    moved = True
    while moved:
        moved = False
        for name, node in structure.nodes.items():
            for at, source in enumerate(node.sources):
                if taken[name, at] >= offered[source]:
                    continue
                if name in queues:
                    open_now = (
                        taken[name, at] - (offered[name] - (0 if all_took(name) else 1)) < node.parameters["DEPTH"]
                    )
                elif len(node.sources) > 1:
                    # A join takes what it needs for its next word, when all of it is there.
                    wanted = node.flow.consumed(np.array([offered[name] + 1]))
                    there = all(offered[each] >= want[0] for each, want in zip(node.sources, wanted, strict=True))
                    open_now = all_took(name) and there and taken[name, at] < wanted[at][0]
                else:
                    open_now = taken[name, at] < node.flow.accepted(np.array([offered[name]]))[0][0]
                if open_now:
                    taken[name, at] += 1
                    moved = True
            if all_took(name):
                if not node.sources:
                    more = offered[name] < samples * node.stream.words
                else:
                    counts = [np.array([taken[name, at]]) for at in range(len(node.sources))]
                    more = node.flow.produced(counts)[0] > offered[name]
                if more:
                    offered[name] += 1
                    moved = True
    return any(offered[end.stream] < samples * structure.stream(end).words for end in structure.outputs)


def with_depth(structure: Structure, name: str, depth: int) -> Structure:
    node = structure.nodes[name]
    short = replace(node, parameters={**node.parameters, "DEPTH": depth})
    return replace(structure, nodes={**structure.nodes, name: short})


@given(seed=st.integers(0, 400))
def test_no_design_stops_with_the_least_depths(seed: int) -> None:
    graph = any_net(seed)
    assert not stops(lower(graph, random_foldings(graph, seed), fifos="least"))


def test_one_word_less_stops_a_branch_that_holds_nothing() -> None:
    graph = residual_digits()
    structure = lower(graph, random_foldings(graph, 3), fifos="least")
    assert len(structure.fifos) == 1
    for name, depth in structure.fifos.items():
        assert depth > 2
        assert not stops(structure)
        assert stops(with_depth(structure, name, depth - 1))


@given(seed=st.integers(0, 400))
def test_full_speed_never_takes_less(seed: int) -> None:
    graph = any_net(seed)
    bare = lower(graph, random_foldings(graph, seed), fifos="least")
    nodes = {
        name: replace(
            node, sources=tuple(bare.nodes[each].sources[0] if each in bare.fifos else each for each in node.sources)
        )
        for name, node in bare.nodes.items()
        if name not in bare.fifos
    }
    structure = replace(bare, nodes=nodes)
    least, full = least_depths(structure), full_speed_depths(structure)
    assert all(full[key] >= depth for key, depth in least.items())

"""Depths of the FIFOs in front of joins: with less, a design with branches stands still, or runs slower.

Two branches that meet begin at one node, which all their paths pass; a word leaves it when all readers have taken the
one before. If one branch holds many words before it makes its first (the rows of a line buffer), the other must hold
what it was given meanwhile.
"""

from __future__ import annotations

import numpy as np

from stoker.deploy.rtl.flow import Counts
from stoker.deploy.rtl.structure import DesignNode, Structure

Depths = dict[tuple[str, int], int]


def least_depths(structure: Structure) -> Depths:
    """For each input of a join, the fewest words with which no sample ever stands still.

    When the node where branches begin has given m words, a branch has made p(m) of which the join has taken c(m): the
    difference must have a place, for the slower branch waits for the next word of that node. If the branch itself holds
    nothing, one word less stops the design.
    """
    found: Depths = {}
    for node in _joins(structure):
        begin = _beginning(structure, node)
        if begin is None:
            continue  # the branches begin at different inputs, which nothing ties to each other
        given = np.arange(structure.nodes[begin].stream.words + 1)
        made = _made(structure, begin, node, given)
        taken = node.flow.consumed(node.flow.produced(made))
        for at, (there, gone) in enumerate(zip(made, taken, strict=True)):
            found[node.name, at] = int((there - gone).max())
    return found


def full_speed_depths(structure: Structure) -> Depths:
    """For each input of a join, as many words as keep it from ever holding back the others.

    The other branches can have been given so many words before n have left the join (``accepted``, composed along
    each path): what this branch makes of these must have a place.
    """
    least = least_depths(structure)
    found: Depths = {}
    for node in _joins(structure):
        begin = _beginning(structure, node)
        consumed = node.flow.consumed(np.arange(node.stream.words + 1))
        for at in range(len(node.sources)):
            found[node.name, at] = 2
            if begin is None:  # nothing ties the branches: each may be a sample ahead of the others
                found[node.name, at] = max(2, int(consumed[at][-1]))
                continue
            made = _made(structure, begin, node, np.arange(structure.nodes[begin].stream.words + 1))
            for other in range(len(node.sources)):
                ahead = made[other] - made[at]
                if other == at or (ahead.min() >= 0 and ahead.max() > 0):
                    continue  # a branch that always is ahead never waits for this one's words to be taken
                source = node.sources[other]
                given = _swallowed(structure, begin, source, consumed[other] + least[node.name, other])
                there = _made(structure, begin, node, given)[at]
                # One word more, in which a reader of a branching stream may be ahead of the other.
                most = int((there - consumed[at]).max()) + 1
                found[node.name, at] = max(found[node.name, at], least[node.name, at], most)
    return found


def _joins(structure: Structure) -> list[DesignNode]:
    return [node for node in structure.nodes.values() if len(node.sources) > 1]


def _beginning(structure: Structure, join: DesignNode) -> str | None:
    """The last node that all paths to a join pass: its nearest dominator."""
    passed: dict[str, set[str]] = {}
    for name, node in structure.nodes.items():
        common = set[str].intersection(*(passed[source] for source in node.sources)) if node.sources else set[str]()
        passed[name] = common | {name}
        if name == join.name:
            order = list(structure.nodes)
            return max(common, key=order.index) if common else None
    raise AssertionError(join.name)


def _made(structure: Structure, begin: str, join: DesignNode, given: Counts) -> list[Counts]:
    """Words of each input of a join that can have been made of so many of the node where its branches begin."""
    made: dict[str, Counts] = {begin: given}
    for name, node in structure.nodes.items():
        if name == join.name:
            break
        # An input from elsewhere never is what is missing: it is tied to nothing.
        known = [made.get(source) for source in node.sources]
        present = [each for each in known if each is not None]
        if present and name not in made:
            endless = np.full_like(given, np.iinfo(np.int64).max >> 8)
            made[name] = node.flow.produced([endless if each is None else each for each in known])
    return [made[source] for source in join.sources]


def _swallowed(structure: Structure, begin: str, name: str, taken: Counts) -> Counts:
    """Words of the node ``begin`` that the paths to ``name`` can have been given when so many of ``name`` are gone."""
    accepted: dict[str, Counts] = {name: taken}
    for each in reversed(list(structure.nodes)):
        if each in accepted and each != begin:
            node = structure.nodes[each]
            for source, most in zip(node.sources, node.flow.accepted(accepted[each]), strict=True):
                accepted[source] = np.maximum(accepted[source], most) if source in accepted else most
    return accepted[begin]

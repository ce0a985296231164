"""The content of a picture of a cut: calls as boxes, folded together if there are too many to read.

A box holds calls of one place. Boxes are joined by their kind (same function and line, same place, …): first those
whose absence is missed least, and only until the picture is small enough. No joining makes a cycle: calls of one kind
are joined only where no path between them leaves the kind.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from stoker.records.events import CutChosen, GraphNode, GraphValue
from stoker.ui.graph_layers import longest_paths, sorted_by_dependence

MAX_BOXES = 34
MAX_WIDE = 7
"""Boxes side by side that a page has room for."""
LONG_CHAIN = 30
SHORT_CHAIN = 4
_TALLEST = 16


@dataclass(frozen=True)
class Box:
    """Calls that are drawn as one."""

    nodes: tuple[GraphNode, ...]
    sources: frozenset[int]
    """Boxes that it takes from, by their place in the list."""
    takes_sent: bool
    """Takes something that data workers send."""

    @property
    def place(self) -> str:
        """Where its calls are."""
        return self.nodes[0].place

    @property
    def functions(self) -> list[str]:
        """What it calls, each once, in program order."""
        return list(dict.fromkeys(node.function for node in self.nodes))

    @property
    def sites(self) -> list[str]:
        """Lines of the program, each once, in program order."""
        return list(dict.fromkeys(node.site for node in self.nodes))


def fold(cut: CutChosen) -> list[Box]:
    """The boxes, each after those it takes from."""
    boxes = _fold_chains(_single(cut), LONG_CHAIN)
    for step in (_fold_rest, _fold_repeats, _fold_short_chains, _fold_functions, _fold_rows, _fold_blocks):
        if _fits(boxes):
            break
        boxes = step(boxes)
    return boxes


def _single(cut: CutChosen) -> list[Box]:
    """One box a call; links to missing or later calls are omitted."""
    values = {value.number: value for value in cut.values}
    place = {node.number: number for number, node in enumerate(cut.nodes)}
    boxes: list[Box] = []
    for number, node in enumerate(cut.nodes):
        taken = [values[value] for value in node.inputs if value in values]
        producers = {place[value.producer] for value in taken if value.producer in place}
        sources = frozenset(producer for producer in producers if producer < number)
        takes_sent = node.place != "moved" and any(value.crosses for value in taken)
        boxes.append(Box((node,), sources, takes_sent))
    return boxes


def rows_of(boxes: list[Box]) -> dict[int, int]:
    """The longest path that leads to each box on its side of the boundary."""
    edges = [
        (source, number)
        for number, box in enumerate(boxes)
        for source in box.sources
        if (box.place == "moved") == (boxes[source].place == "moved")
    ]
    return longest_paths(edges, dict.fromkeys(range(len(boxes)), 0))


def _fits(boxes: list[Box]) -> bool:
    if len(boxes) > MAX_BOXES:
        return False
    rows = rows_of(boxes)
    together = [(rows[number], box.place == "moved") for number, box in enumerate(boxes)]
    return all(together.count(row) <= MAX_WIDE for row in set(together))


def _fold_rest(boxes: list[Box]) -> list[Box]:
    """The stateful calls that take nothing sent: the model's inside, which the cut is not about."""
    return _join(boxes, lambda number, box: number if box.place != "stateful" or box.takes_sent else "rest")


def _fold_repeats(boxes: list[Box]) -> list[Box]:
    """The calls that one line of the program makes again and again."""
    return _join(boxes, lambda _, box: (box.place, box.takes_sent, *box.functions, *box.sites))


def _fold_short_chains(boxes: list[Box]) -> list[Box]:
    return _fold_chains(boxes, SHORT_CHAIN)


def _fold_functions(boxes: list[Box]) -> list[Box]:
    """The calls of one function, wherever they stand in the program, row by row."""
    rows = rows_of(boxes)
    return _join(boxes, lambda number, box: (box.place, rows[number], *box.functions))


def _fold_rows(boxes: list[Box]) -> list[Box]:
    rows = rows_of(boxes)
    return _join(boxes, lambda number, box: (box.place, rows[number]))


def _fold_blocks(boxes: list[Box]) -> list[Box]:
    """Several rows at a time."""
    rows = rows_of(boxes)
    height = -(-(max(rows.values(), default=0) + 1) // _TALLEST)
    return _join(boxes, lambda number, box: (box.place, rows[number] // height))


def _fold_chains(boxes: list[Box], longest: int) -> list[Box]:
    """The inside of every row of calls, of one place, that only take from each other and has more than ``longest``."""
    users: dict[int, list[int]] = {number: [] for number in range(len(boxes))}
    for number, box in enumerate(boxes):
        for source in box.sources:
            users[source].append(number)
    names: dict[int, Hashable] = {}
    for number in range(len(boxes)):
        if _only_source(boxes, users, number) is None:
            chain = _follow(boxes, users, number)
            if len(chain) > longest:
                names.update(dict.fromkeys(chain[1:-1], ("chain", number)))
    return _join(boxes, lambda number, _: names.get(number, number))


def _follow(boxes: list[Box], users: dict[int, list[int]], head: int) -> list[int]:
    chain = [head]
    while len(users[chain[-1]]) == 1 and _only_source(boxes, users, users[chain[-1]][0]) is not None:
        chain.append(users[chain[-1]][0])
    return chain


def _only_source(boxes: list[Box], users: dict[int, list[int]], number: int) -> int | None:
    """The box before in a chain; None where a chain begins."""
    box = boxes[number]
    if len(box.sources) != 1 or box.takes_sent:
        return None
    (source,) = box.sources
    return source if len(users[source]) == 1 and boxes[source].place == box.place else None


def _join(boxes: list[Box], kind_of: Callable[[int, Box], Hashable]) -> list[Box]:
    """Joins boxes of one kind between which no path leaves the kind."""
    kinds = [kind_of(number, box) for number, box in enumerate(boxes)]
    # Number of changes of kind on the way to a box: no path leaves a kind and level and comes back to both.
    levels: list[int] = []
    for number, box in enumerate(boxes):
        levels.append(max((levels[at] + (kinds[at] != kinds[number]) for at in box.sources), default=0))
    groups: dict[Hashable, list[int]] = {}
    for number in range(len(boxes)):
        groups.setdefault((kinds[number], levels[number]), []).append(number)
    return _rebuild(boxes, list(groups.values()))


def _rebuild(boxes: list[Box], groups: list[list[int]]) -> list[Box]:
    group_of = {number: group for group, members in enumerate(groups) for number in members}
    sources = {
        group: sorted({group_of[at] for number in members for at in boxes[number].sources} - {group})
        for group, members in enumerate(groups)
    }
    order = sorted_by_dependence(sources)
    position = {group: number for number, group in enumerate(order)}
    return [
        Box(
            nodes=tuple(sorted((n for at in groups[group] for n in boxes[at].nodes), key=lambda node: node.number)),
            sources=frozenset(position[source] for source in sources[group]),
            takes_sent=any(boxes[at].takes_sent for at in groups[group]),
        )
        for group in order
    ]


def fold_values(values: list[GraphValue], kind_of: Callable[[GraphValue], Hashable]) -> list[list[GraphValue]]:
    """Tensors that are drawn as one: each alone where there is room, else those of one kind, else the largest alone."""
    if len(values) <= MAX_WIDE:
        return [[value] for value in values]
    groups: dict[Hashable, list[GraphValue]] = {}
    for value in values:
        groups.setdefault(kind_of(value), []).append(value)
    found = list(groups.values())
    if len(found) <= MAX_WIDE:
        return found
    by_size = sorted(found, key=lambda group: -sum(value.size_bytes for value in group))
    shown, rest = by_size[: MAX_WIDE - 1], by_size[MAX_WIDE - 1 :]
    return [*(group for group in found if group in shown), [value for group in rest for value in group]]

"""The minimum cut of a small network with whole-number capacities, by Dinic's algorithm.

Of our own, although torch brings ``networkx``: importing that after torch took 0.31 to 0.36 s
(3 imports in fresh processes, networkx 3.6.1, Python 3.11, 2 busy cores), which would fall into one of the user's
training steps.
"""

from __future__ import annotations

from collections import deque

SOURCE, SINK = 0, 1


class Network:
    """Vertices are numbers; 0 is the source and 1 the sink."""

    def __init__(self) -> None:
        self._heads: list[int] = []
        """Where an edge goes; edge ``e`` and its reverse ``e ^ 1`` lie side by side."""
        self._left: list[int] = []
        """Capacity that is not used yet."""
        self._edges: list[list[int]] = [[], []]
        """Edges that leave a vertex."""

    def vertex(self) -> int:
        """A new vertex."""
        self._edges.append([])
        return len(self._edges) - 1

    def edge(self, tail: int, head: int, capacity: int) -> None:
        """Cutting ``tail`` (on the source's side) from ``head`` (on the sink's) costs ``capacity``."""
        assert capacity >= 0
        for start, end, left in ((tail, head, capacity), (head, tail, 0)):
            self._edges[start].append(len(self._heads))
            self._heads.append(end)
            self._left.append(left)

    def source_side(self) -> set[int]:
        """The vertices on the source's side of a minimum cut: of several such cuts, the smallest side.

        Use a network once: the flow stays in it.
        """
        while (levels := self._levels())[SINK] >= 0:
            self._fill(levels)
        return {vertex for vertex, level in enumerate(levels) if level >= 0}

    def _levels(self) -> list[int]:
        """Each vertex's distance from the source along edges with capacity left; -1 where there is no way."""
        levels = [-1] * len(self._edges)
        levels[SOURCE] = 0
        waiting = deque([SOURCE])
        while waiting:
            vertex = waiting.popleft()
            for edge in self._edges[vertex]:
                head = self._heads[edge]
                if self._left[edge] and levels[head] < 0:
                    levels[head] = levels[vertex] + 1
                    waiting.append(head)
        return levels

    def _fill(self, levels: list[int]) -> None:
        """Sends what fits along shortest ways. A loop, since a way may be longer than Python's stack is deep."""
        tried = [0] * len(self._edges)
        way: list[int] = []
        vertex = SOURCE
        while True:
            if vertex == SINK:
                self._send(way)
                way.clear()
                vertex = SOURCE
            edge = self._onward(vertex, levels, tried)
            if edge is not None:
                way.append(edge)
                vertex = self._heads[edge]
            elif way:
                vertex = self._heads[way.pop() ^ 1]
                tried[vertex] += 1
            else:
                return

    def _onward(self, vertex: int, levels: list[int], tried: list[int]) -> int | None:
        """The first edge towards the sink that has capacity left and has not led nowhere before."""
        edges = self._edges[vertex]
        while tried[vertex] < len(edges):
            edge = edges[tried[vertex]]
            if self._left[edge] and levels[self._heads[edge]] == levels[vertex] + 1:
                return edge
            tried[vertex] += 1
        return None

    def _send(self, way: list[int]) -> None:
        amount = min(self._left[edge] for edge in way)
        for edge in way:
            self._left[edge] -= amount
            self._left[edge ^ 1] += amount

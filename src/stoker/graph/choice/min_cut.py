"""The minimum cut of a small network with whole-number capacities, by Dinic's algorithm.

It does not use ``networkx``, which torch brings: importing that after torch took 0.31 to 0.36 s
(3 imports in fresh processes, networkx 3.6.1, Python 3.11, 2 busy cores), which would delay one of the user's training
steps.
"""

from __future__ import annotations

from collections import deque

SOURCE, SINK = 0, 1


class Network:
    """Vertices are numbers; 0 is the source and 1 the sink."""

    def __init__(self) -> None:
        self._heads: list[int] = []
        """Head of each edge; the reverse of edge ``e`` is ``e ^ 1``."""
        self._left: list[int] = []
        """Residual capacity of each edge."""
        self._edges: list[list[int]] = [[], []]
        """Edges that leave each vertex."""

    def vertex(self) -> int:
        """Adds a vertex; returns its number."""
        self._edges.append([])
        return len(self._edges) - 1

    def edge(self, tail: int, head: int, capacity: int) -> None:
        """Adds an edge: cutting ``tail`` (source's side) from ``head`` (sink's side) costs ``capacity``."""
        assert capacity >= 0
        for start, end, left in ((tail, head, capacity), (head, tail, 0)):
            self._edges[start].append(len(self._heads))
            self._heads.append(end)
            self._left.append(left)

    def source_side(self) -> set[int]:
        """The vertices on the source's side of a minimum cut; of several such cuts, the smallest side.

        Call this once per network: the flow stays in it.
        """
        while (levels := self._levels())[SINK] >= 0:
            self._fill(levels)
        return {vertex for vertex, level in enumerate(levels) if level >= 0}

    def _levels(self) -> list[int]:
        """Each vertex's distance from the source along edges with capacity left; -1 if unreachable."""
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
        """Fills shortest paths with flow. Iterative, since a path may be longer than Python's recursion limit."""
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
        """The first edge towards the sink that has capacity left and is not known as a dead end."""
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

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from stoker.graph.choice.min_cut import SINK, SOURCE, Network

VERTICES = 6
EDGES = st.lists(
    st.tuples(st.integers(0, VERTICES - 1), st.integers(0, VERTICES - 1), st.integers(0, 6)).filter(
        lambda edge: edge[0] != edge[1]
    ),
    max_size=18,
)


def network(edges):
    found = Network()
    for _ in range(VERTICES - 2):
        found.vertex()
    for edge in edges:
        found.edge(*edge)
    return found


def cost(edges, side):
    return sum(capacity for tail, head, capacity in edges if tail in side and head not in side)


def all_sides():
    others = range(2, VERTICES)
    for count in range(len(others) + 1):
        for chosen in combinations(others, count):
            yield {SOURCE, *chosen}


@given(EDGES)
def test_the_side_is_the_smallest_of_the_cheapest(edges):
    side = network(edges).source_side()
    assert SINK not in side
    cheapest = min(cost(edges, other) for other in all_sides())
    assert cost(edges, side) == cheapest
    assert all(side <= other for other in all_sides() if cost(edges, other) == cheapest)


def test_nothing_leaves_a_source_without_edges():
    assert Network().source_side() == {SOURCE}


def test_flow_finds_its_way_back():
    # The shortest way first takes the edge 2 -> 5 that both need; the second way must undo it.
    edges = [(0, 2, 1), (0, 3, 1), (2, 4, 1), (2, 5, 1), (3, 5, 1), (4, 1, 1), (5, 1, 1)]
    assert cost(edges, network(edges).source_side()) == 2


def test_a_way_may_be_longer_than_the_stack():
    found = Network()
    last = SOURCE
    for _ in range(20_000):
        vertex = found.vertex()
        found.edge(last, vertex, 2)
        last = vertex
    found.edge(last, SINK, 1)
    assert len(found.source_side()) == 20_001

from hypothesis import given
from hypothesis import strategies as st

from stoker.train.exchanging.payload import Doubt, Header
from stoker.train.exchanging.standing import LayerStanding

headers = st.lists(st.builds(Header, rows=st.integers(0, 50), doubt=st.sampled_from(Doubt)), min_size=1, max_size=4)


def test_one_ranks_doubt_is_all_ranks() -> None:
    standing = LayerStanding(8, 32)
    assert standing.read([Header(rows=8), Header(rows=3)])
    assert not standing.read([Header(rows=8), Header(rows=8, doubt=Doubt.PRODUCT)])
    assert standing.steps == 1
    assert standing.doubts == {"its gradient holds more than the product": 1}


def test_rows_grow_to_those_that_came_as_far_as_memory_allows() -> None:
    standing = LayerStanding(8, 32)
    assert not standing.read([Header(rows=8), Header(rows=17, doubt=Doubt.ROWS)])
    assert (standing.room, standing.left) == (24, "")
    standing.read([Header(rows=33, doubt=Doubt.ROWS)])
    assert standing.left == "more rows than its memory allows"


def test_a_layer_that_is_doubted_again_and_again_leaves() -> None:
    standing = LayerStanding(8, 32)
    steps = 0
    while not standing.left:
        standing.read([Header(rows=1, doubt=Doubt.PRODUCT if steps % 2 else Doubt.NONE)])
        steps += 1
    assert steps <= 30
    assert standing.left == "its gradient holds more than the product"


def test_one_doubt_in_three_steps_is_borne() -> None:
    standing = LayerStanding(8, 32)
    for step in range(300):
        standing.read([Header(rows=1, doubt=Doubt.FAILED if step % 3 == 0 else Doubt.NONE)])
    assert not standing.left


@given(st.lists(headers, max_size=30))
def test_all_ranks_keep_the_same_standing(steps: list[list[Header]]) -> None:
    ranks = [LayerStanding(8, 32) for _ in range(2)]
    for step in steps:
        assert len({rank.read(step) for rank in ranks}) == 1
        assert len({(rank.room, rank.left, rank.steps) for rank in ranks}) == 1
        assert all(8 <= rank.room <= 32 for rank in ranks)

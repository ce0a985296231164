import torch
from hypothesis import given
from hypothesis import strategies as st

from stoker.train.exchanging.rows import add_rows, filled_rows


@given(ranks=st.integers(1, 4), rows=st.integers(1, 20), width=st.integers(1, 5), seed=st.integers(0, 99))
def test_rows_equal_the_dense_mean_on_all_ranks(ranks: int, rows: int, width: int, seed: int) -> None:
    chance = torch.Generator().manual_seed(seed)
    dense = [
        torch.randn(rows, width, generator=chance) * (torch.rand(rows, 1, generator=chance) < 0.3) for _ in range(ranks)
    ]
    parts = [(filled_rows(each), each[filled_rows(each)]) for each in dense]
    found = [each.clone() for each in dense]
    for own, (numbers, _) in zip(found, parts, strict=True):
        add_rows(own, numbers, parts, 1.0 / ranks)
    torch.testing.assert_close(found[0], torch.stack(dense).mean(0))
    assert all(torch.equal(found[0], other) for other in found)


@given(
    st.integers(0, 30), st.integers(1, 9), st.integers(0, 3),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]), st.integers(0, 999),
)  # fmt: skip
def test_filled_rows_are_found_in_any_type_and_at_any_place(
    rows: int, width: int, offset: int, kind: torch.dtype, seed: int
) -> None:
    """Those of a bucket begin anywhere in it; the smallest number and one that is not a number count as well."""
    chance = torch.Generator().manual_seed(seed)
    wanted = torch.randint(2, (rows,), generator=chance).bool()
    memory = -torch.zeros(offset + rows * width, dtype=kind)
    gradient = memory[offset:].view(rows, width)
    for row in wanted.nonzero().flatten().tolist():
        value = (float("nan"), torch.finfo(kind).smallest_normal, -1.0)[row % 3]
        gradient[row, int(torch.randint(width, (1,), generator=chance))] = value
    assert filled_rows(gradient).tolist() == wanted.nonzero().flatten().tolist()

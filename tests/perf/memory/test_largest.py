"""The largest batch that fits: traced, not the end of a line."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.perf.memory.largest import LargestBatch, SizedStep, largest_batch

GB = 10**9


def search(
    need: Callable[[int], int], available: int, own: int, *, most_traced: int | None = None
) -> tuple[LargestBatch | None, list[int]]:
    """What is found for a program whose steps need this, and the sizes that were traced for it."""
    asked: list[int] = []

    def step(size: int) -> SizedStep:
        return SizedStep(size, need(size), need(size) <= available)

    def traced(size: int) -> SizedStep | None:
        asked.append(size)
        return step(size) if most_traced is None or size <= most_traced else None

    return largest_batch({own: step(own), 2 * own: step(2 * own)}, available, traced), asked


@given(
    fixed=st.integers(0, 20 * GB), sample=st.integers(1_000, GB), own=st.integers(1, 4096),
    available=st.integers(1, 100 * GB), page=st.sampled_from([1, 1 << 21, 20 << 20]),
)  # fmt: skip
def test_what_is_found_fits_and_was_traced(fixed: int, sample: int, own: int, available: int, page: int) -> None:
    """Bytes in pages, as an allocator reserves them: no line goes through them."""

    def need(size: int) -> int:
        return -(-(fixed + sample * size) // page) * page

    found, asked = search(need, available, own)
    if found is None or not found.is_traced:
        return
    assert len(asked) <= 3
    assert found.batch_size in (0, own, 2 * own, *asked)
    assert not found.batch_size or need(found.batch_size) <= available


def test_a_line_is_not_believed_where_steps_take_more_than_it_says() -> None:
    """From 100 samples on, a kernel of another kind has a workspace."""
    found, asked = search(lambda size: GB + 10**7 * size + (GB if size >= 100 else 0), 3 * GB, 8)
    assert asked[0] == 200
    assert found is not None
    assert found.is_traced
    assert 95 <= found.batch_size <= 100


def test_sizes_that_cannot_be_traced_are_said_to_be_of_a_line() -> None:
    assert search(lambda size: 10**7 * size, GB, 8, most_traced=50)[0] == LargestBatch(100, False)


@pytest.mark.parametrize(("available", "expected"), [(GB // 2, 0), (GB + 10**7, 1)])
def test_a_program_that_is_too_large(available: int, expected: int) -> None:
    found, _ = search(lambda size: GB + 10**7 * size, available, 64)
    assert found == LargestBatch(expected, True)


def test_bytes_that_do_not_grow_have_no_largest_batch() -> None:
    assert search(lambda _: GB, 2 * GB, 8)[0] is None

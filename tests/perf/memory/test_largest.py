"""The largest batch that fits: traced, not the end of a line."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.perf.memory.largest import TRIES, LargestBatch, SizedStep, at_least, largest_batch

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
    assert len(asked) <= TRIES
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


@given(
    fixed=st.integers(0, 20 * GB), sample=st.integers(1_000, GB), own=st.integers(1, 4096),
    available=st.integers(1, 100 * GB), bend=st.floats(0.0, 0.3), saved=st.floats(0.0, 1.0),
    more=st.integers(0, GB), most_traced=st.none() | st.integers(1, 10**6),
)  # fmt: skip
def test_a_remedy_never_makes_the_largest_batch_smaller(
    fixed: int, sample: int, own: int, available: int, bend: float, saved: float, more: int, most_traced: int | None
) -> None:
    """As a report asks: for the same sizes, then for its own, of what takes less where that is less."""
    known = [own, 2 * own]

    def plain(size: int) -> int:
        return int(fixed + sample * size * (1 + bend * size / (size + own)))

    def lowered(size: int) -> int:
        return min(plain(size), int(fixed + more + saved * sample * size))

    def found(need: Callable[[int], int]) -> LargestBatch | None:
        def step(size: int) -> SizedStep:
            return SizedStep(size, need(size), need(size) <= available)

        def traced(size: int) -> SizedStep | None:
            if most_traced is not None and size > most_traced:
                return None
            known.append(size)
            return step(size)

        return largest_batch({size: step(size) for size in known}, available, traced)

    without = found(plain)
    fitted = at_least(found(lowered), without)
    if without is not None:
        assert fitted is not None
        assert fitted.batch_size >= without.batch_size


def test_sizes_that_are_too_large_by_a_hair_again_and_again() -> None:
    """Reserves are no line: 47,061, 46,462 and 46,311 were too large, and 2,048 was all that had been seen to fit."""

    def need(size: int) -> int:
        return GB + 300_000 * size + size * 7919 % 97 * size * 60

    found, asked = search(need, 15 * GB, 1024)
    assert need(asked[0]) > 15 * GB
    assert found is not None
    assert found.is_traced
    assert found.batch_size >= 0.95 * 46_000

"""Which loaders' samples are compared at all: those that are small against the memory that is free."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stoker.feed.state.probing import MOST_PROBED_BYTES, why_not_probed

MIB = 1 << 20


def test_huge_samples_are_not_made_again_whatever_memory_there_is() -> None:
    why = why_not_probed(sample_bytes=240 * MIB, batch_bytes=240 * MIB, workers=2, free_bytes=1 << 40)
    assert why == "what it makes at once (240 MiB) is too large to be made again for a comparison"


def test_batches_that_would_fill_the_memory_are_not_made_again() -> None:
    why = why_not_probed(sample_bytes=40 * MIB, batch_bytes=40 * MIB, workers=2, free_bytes=330 * MIB)
    assert why == "its batches of 40.0 MiB are too large to compare samples with 330 MiB of free memory"
    assert not why_not_probed(sample_bytes=40 * MIB, batch_bytes=40 * MIB, workers=2, free_bytes=8 << 30)


@given(st.integers(1, MOST_PROBED_BYTES), st.integers(1, 64), st.integers(1, 1 << 40), st.integers(0, 1 << 40))
def test_more_memory_never_forbids(sample: int, workers: int, free: int, extra: int) -> None:
    def asked(free_bytes: int) -> str:
        return why_not_probed(sample_bytes=sample, batch_bytes=sample, workers=workers, free_bytes=free_bytes)

    if not asked(free):
        assert not asked(free + extra)

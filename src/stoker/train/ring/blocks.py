"""Which part of a tensor goes where, and when: chunks of a ring, and blocks of chunks. Pure.

In a ring of n ranks a tensor has n chunks. In n - 1 steps each rank sends the sum that it has so far of one chunk, and
adds the next one that it receives; in n - 1 further steps the finished chunks are copied on. So each chunk is summed in
one order, by one rank at a time, and all ranks have the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator

DEFAULT_BLOCK_BYTES = 256 << 10
"""Smaller blocks cost Python more calls, larger ones keep a chain's later links idle for longer. Among 32, 128 and
256 KB the largest was quickest on 2 and as quick on 4 and 8 ranks, in rings over links of 200 Mbit/s."""

_LEAST_BLOCK_BYTES = 32 << 10
"""Below it Python's calls for a block take longer than its bytes on links of some Gbit/s."""
_FILLING = 0.05
"""Share of a chain's time in which its last links may wait for their first block."""


def sum_block_bytes(size: int, count: int, most: int) -> int:
    """Bytes of a block of a ring: two at least in a chunk, so that a rank sends while it receives.

    Args:
        size: of the tensor (bytes).
        count: of ranks.
        most: at most so many bytes.
    """
    return min(most, max(_LEAST_BLOCK_BYTES, size // count // 2))


def chain_block_bytes(size: int, count: int, most: int) -> int:
    """Bytes of a block of a chain: so few that its time hardly grows with the number of ranks.

    The last of n ranks gets its first block after n - 2 others: of blocks of b bytes a copy of S takes
    1 + (n - 2) b / S times what one link takes. Arguments as :func:`sum_block_bytes`.
    """
    return min(most, max(_LEAST_BLOCK_BYTES, int(_FILLING * size / max(1, count - 2))))


def chunk(length: int, count: int, place: int) -> tuple[int, int]:
    """Start and end of a chunk, in elements; chunks differ by one at most, and may be empty.

    Args:
        length: of the tensor (elements, 0 or more).
        count: of chunks.
        place: of the chunk; taken modulo ``count``.
    """
    place %= count
    return length * place // count, length * (place + 1) // count


def blocks(start: int, end: int, most: int) -> Iterator[tuple[int, int]]:
    """Consecutive parts of at most so many elements; none of an empty range."""
    for first in range(start, end, most):
        yield first, min(first + most, end)


def block_elements(block_bytes: int, element_bytes: int) -> int:
    """Elements of a block, at least one."""
    return max(1, block_bytes // element_bytes)


def summed_chunks(place: int, count: int) -> list[int]:
    """The chunks that a rank receives to add to, step by step; it begins by sending chunk ``place``.

    The last of them is then complete on this rank.
    """
    return [(place - step - 1) % count for step in range(count - 1)]


def copied_chunks(place: int, count: int) -> list[int]:
    """The finished chunks that a rank receives, step by step; it begins by sending chunk ``place + 1``."""
    return [(place - step) % count for step in range(count - 1)]

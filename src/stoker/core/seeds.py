"""Seeds as pure functions: a sample's random numbers depend on its place in the run, not on the process.

Source: counter-based seeding as in JAX and tf.data's stateless ops; the key is (base seed, iteration, position,
index). The position is part of it because samplers with replacement repeat indices.
"""

from __future__ import annotations

import struct
from hashlib import blake2b

_KEY = struct.Struct("<qqqqB")
_MASK = (1 << 63) - 1
SAMPLE, BATCH = 0, 1


def sample_seed(base_seed: int, iteration: int, position: int, index: object) -> int:
    """Seed in [0, 2^63) of one sample.

    Args:
        base_seed: the loader's base seed, drawn from the program's main random stream.
        iteration: ordinal of the loader's iteration.
        position: number of samples before this one in the iteration.
        index: the sampler's index; used when it is an ``int``, since other objects have no canonical bytes.
    """
    number = index if isinstance(index, int) else -1
    return _seed(base_seed, iteration, position, number & _MASK, SAMPLE)


def batch_seed(base_seed: int, iteration: int, seq: int) -> int:
    """Seed in [0, 2^63) of what happens to a batch as a whole (collate, ``__getitems__``)."""
    return _seed(base_seed, iteration, seq, 0, BATCH)


def _seed(base_seed: int, iteration: int, position: int, index: int, kind: int) -> int:
    key = _KEY.pack(base_seed, iteration, position, index, kind)
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "little") & _MASK

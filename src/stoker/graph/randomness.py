"""Random calls that belong to a work item: drawn from a seed of its own, wherever and however often they are made.

With ``--random sample`` only. The main stream does not move, so what the program draws besides does not depend on what
was moved; the numbers are the same in a data worker, in the training process, and for any number of workers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator

import torch

from stoker.core import seeds


@contextlib.contextmanager
def seeded(seed: int, order: int) -> Generator[None]:
    """Has torch draw from the stream of the ``order``-th random call on the work item with this seed."""
    generator = torch.default_generator
    state = generator.get_state()
    generator.manual_seed(seeds.batch_seed(seed, 0, order))
    try:
        yield
    finally:
        generator.set_state(state)

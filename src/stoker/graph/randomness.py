"""Random calls that belong to a work item: they draw from its own seed, wherever and however often they run.

With ``--random sample`` only. The main stream does not advance, so the program's other draws do not depend on the cut.
The numbers are the same in a data worker, in the training process, and for any number of workers.
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

"""Random calls that belong to a work item: they draw from its own seed, wherever and however often they run.

With ``--random sample`` only. The main stream does not advance, so the program's other draws do not depend on the cut.
The numbers are the same in a data worker, in the training process, and for any number of workers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator

import torch

from stoker.core import seeds


def state_of(generator: torch.Generator) -> torch.Tensor:
    """The state of a torch generator.

    Of a copy: ``get_state`` makes its tensor while it holds the generator's lock. If Python collects garbage there, and
    that frees a tensor, the interpreter goes on in another thread, which waits for the lock for ever when it asks too.
    """
    return generator.clone_state().get_state()


@contextlib.contextmanager
def seeded(seed: int, order: int) -> Generator[None]:
    """Has torch draw from the stream of the ``order``-th random call on the work item with this seed."""
    generator = torch.default_generator
    state = state_of(generator)
    generator.manual_seed(seeds.batch_seed(seed, 0, order))
    try:
        yield
    finally:
        generator.set_state(state)

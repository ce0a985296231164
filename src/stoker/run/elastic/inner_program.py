"""What a command line runs behind a launcher of ranks, and a child in the place of one of them."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager

_MODULE = ("-m", "--module")


def traceable(program: Sequence[str]) -> list[str]:
    """The script or ``-m module`` whose steps are to be traced, with its arguments; empty for anything else.

    Behind a launcher of ranks it is what they run: the first word that is a script, or what follows ``-m``.
    """
    words = list(program)
    if words[0].endswith("torchrun") or words[:2] == ["-m", "torch.distributed.run"]:
        words = words[2 if words[0] == "-m" else 1 :]
        words = words[
            next((at for at, word in enumerate(words) if word.endswith(".py") or word in _MODULE), len(words)) :
        ]
        return ["-m", *words[1:]] if words[:1] and words[0] in _MODULE else words
    if words[0].startswith("-m"):
        return ["-m", *([words[0][2:]] if words[0] != "-m" else []), *words[1:]]
    return [] if words[0].startswith("-") else words


@contextmanager
def as_rank_of(ranks: int) -> Generator[None]:
    """Tells the child in the environment, as launchers do, which rank it is of how many."""
    told = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(ranks)} if ranks > 1 else {}
    before = {name: os.environ.get(name) for name in told}
    os.environ.update(told)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

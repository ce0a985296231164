"""What is left to DDP's own first copy: modules that differ between ranks or are elsewhere, and pairs of ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as distributed
from torch import nn

from stoker.train.ring import synchronise
from tests.train.ring.test_groups import ranks as forked

pytestmark = pytest.mark.integration


def _differing(rank: int) -> tuple[bool, bool, list[str]]:
    said: list[str] = []
    module = nn.Linear(600, 600 + rank)
    by_shape = synchronise.copied_by_chain(module, None, said.append)
    module = nn.Linear(600, 600, device="meta" if rank == 2 else "cpu")
    return by_shape, synchronise.copied_by_chain(module, None, said.append), said


def test_modules_that_differ_or_are_elsewhere_are_left_to_torch(tmp_path: Path) -> None:
    line = (
        "the first synchronisation goes by torch's own broadcast: rank 2: weight is on meta, and sockets carry tensors "
        "on the CPU"
    )
    assert forked(3, tmp_path, _differing) == [(False, False, [line] if rank == 0 else []) for rank in range(3)]


def _two(_: int) -> bool:
    is_done = synchronise.copied_by_chain(nn.Linear(600, 600), None, print)
    distributed.barrier()  # a rank that is through leaves, and the other would still connect
    return is_done


def test_two_ranks_are_left_to_torch(tmp_path: Path) -> None:
    assert forked(2, tmp_path, _two) == [False] * 2

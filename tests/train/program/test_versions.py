"""Ranks of different versions, on real ranks."""

import pytest
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.support.ranks import on_ranks
from stoker.core.errors import ExchangeError
from stoker.train import exchange
from stoker.train.program import versions

pytestmark = pytest.mark.integration


def found(rank: int, odd: int) -> tuple[str, str, int]:
    if rank == odd:
        versions.VERSION = "0.0.1"
    ddp = DistributedDataParallel(nn.Linear(4, 4))
    said = versions.unlike_versions(ddp.process_group, ddp)
    try:
        exchange(ddp, {"": "late"})
    except ExchangeError as error:
        return said, str(error), len(ddp.module._forward_hooks)
    return said, "", len(ddp.module._forward_hooks)


def test_all_ranks_refuse_with_the_same_words_before_anything_is_changed() -> None:
    ranks = on_ranks(3, lambda rank: found(rank, odd=2), timeout_s=60)
    assert len(set(ranks)) == 1
    words, error, hooks = ranks[0]
    assert f"got {versions.__version__} on rank 0 and 0.0.1 on rank 2; install the same on all machines" in words
    assert words in error
    assert hooks == 0


def test_ranks_of_one_version_exchange() -> None:
    assert on_ranks(2, lambda rank: found(rank, odd=-1), timeout_s=60) == [("", "", 1)] * 2

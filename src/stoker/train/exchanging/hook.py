# pyright: reportPrivateImportUsage=false
# (torch names the class of its buckets in its documents, and not among its exports)
"""The hook that DDP calls with each bucket. DDP reads its annotations, which therefore are objects and not texts."""

import torch
import torch.distributed as dist

from stoker.train.exchanging.replica import ReplicaExchange


def exchange_hook(state: ReplicaExchange, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Exchanges a bucket as the plan of its module has it."""
    return state.exchange(bucket)

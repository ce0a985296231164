"""A program whose rank 1 is killed while rank 0 asks for its shares: rank, ranks, folder and what is shared."""

import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from stoker.train.sharding.states import shard_states
from stoker.train.sharding.weights import shard_weights
from stoker.train.staging.calling import shard_layers


def main(rank, ranks, folder, what):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=ranks, timeout=timedelta(seconds=60)
    )
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 80), nn.ReLU(), nn.Linear(80, 3))
    if what.startswith("weights"):
        ddp = shard_weights(model)
    elif what.startswith("layers"):
        ddp = shard_layers(model, torch.ones(4, 5), cuts=["2"])
    else:
        ddp = DistributedDataParallel(model)
        shard_states(ddp)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.01)
    for _ in range(3):
        nn.functional.mse_loss(ddp(torch.ones(4, 5) * rank), torch.zeros(4, 3)).backward()
        optimizer.step()
        optimizer.zero_grad()
    if what.endswith("killed"):
        if rank == 1:
            (folder / "through").touch()
            while not (folder / "asking").exists():
                time.sleep(0.02)
            os.kill(os.getpid(), signal.SIGKILL)
        while not (folder / "through").exists():
            time.sleep(0.02)
        (folder / "asking").touch()
        while True:  # until rank 1 is gone
            optimizer.state_dict()
    if rank == 0:
        time.sleep(1)  # the other rank is through
        torch.save({"model": ddp.module.state_dict(), "optimizer": optimizer.state_dict()}, folder / "saved.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])

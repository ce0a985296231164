"""A program of three stages, whose middle one is killed or stopped in mid-training: rank, folder and signal."""

import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from stoker.core.errors import ExchangeError
from stoker.train.staging.calling import shard_layers


def main(rank, folder, sent):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=3, timeout=timedelta(seconds=10)
    )
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 80), nn.ReLU(), nn.Linear(80, 80), nn.ReLU(), nn.Linear(80, 3))
    ddp = shard_layers(model, torch.ones(4, 5), cuts=["2", "4"])
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.01)
    try:
        for step in range(1000):
            outputs = ddp(torch.ones(4, 5) * rank)
            if step == 3 and rank == 1:
                (folder / "lost").touch()
                os.kill(os.getpid(), sent)
            nn.functional.mse_loss(outputs, torch.zeros(4, 3)).backward()
            optimizer.step()
            optimizer.zero_grad()
    except ExchangeError as error:
        print(f"{time.time()} {error}", flush=True)
        (folder / f"told{rank}").touch()
    until = time.monotonic() + 20  # a rank that leaves would be the one that is lost for the other
    while rank != 1 and time.monotonic() < until and not all((folder / f"told{each}").exists() for each in (0, 2)):
        time.sleep(0.05)
    os._exit(3)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), signal.Signals[sys.argv[3]])

"""A program whose rank 0 saves alone at its end: rank, ranks, folder and how it ends are its arguments.

In the rank's place, how it starts its ranks itself: ``fork`` or ``spawn``.
"""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import multiprocessing, nn

from stoker.core.errors import ExchangeError
from stoker.train import split


def main(rank, ranks, folder, way):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=ranks, timeout=timedelta(seconds=60)
    )
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3), nn.Linear(3, 2))
    ddp = split(model, plan={"0": "column", "2": "row"})
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=0.01)
    for _ in range(3):
        nn.functional.mse_loss(ddp(torch.ones(4, 5) * rank), torch.zeros(4, 2)).backward()
        optimizer.step()
        optimizer.zero_grad()
    if way == "raises" and rank == 0:
        raise SystemError("planted")
    if way == "raises":
        ddp(torch.ones(4, 5))  # in which rank 0 never takes part
    dist.destroy_process_group()
    if rank == 1:
        (folder / "through").touch()
    if way == "killed" and rank == 1:
        os._exit(0)
    if rank == 0:
        while not (folder / "through").exists():
            time.sleep(0.05)
        try:
            torch.save({"model": ddp.module.state_dict(), "optimizer": optimizer.state_dict()}, folder / "saved.pt")
        except ExchangeError as error:
            (folder / "error").write_text(str(error))


if __name__ == "__main__":
    rest = int(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
    if sys.argv[1] in ("fork", "spawn"):
        multiprocessing.start_processes(main, rest, nprocs=rest[0], start_method=sys.argv[1])
    else:
        main(int(sys.argv[1]), *rest)

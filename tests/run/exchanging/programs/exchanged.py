"""Trains a small model under DistributedDataParallel: ranks of a launcher, or two that the program spawns itself.

Arguments: `launched`, `spawned`, `unlike` (as spawned, and rank 1 has another version of stoker), `sharded` (by FSDP2),
`hooked` (the program's own hook) or `alone` (no DistributedDataParallel); then steps.
"""

import hashlib
import os
import socket
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel


def train(kind: str, steps: int) -> None:
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))
    if kind == "sharded":
        from torch.distributed.fsdp import fully_shard

        fully_shard(model[0])
        fully_shard(model)
    elif kind != "alone":
        model = DistributedDataParallel(model)
    if kind == "hooked":
        model.register_comm_hook(None, fp16_compress_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(1 + (dist.get_rank() if dist.is_initialized() else 0))
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
    if kind == "sharded":
        return
    found = hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in model.parameters())).hexdigest()
    os.write(sys.stdout.fileno(), f"weights {found[:16]}\n".encode())  # one write, so that ranks do not mix


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def work(rank: int, port: int, kind: str, steps: int) -> None:
    if kind == "unlike" and rank == 1:
        from stoker.train.program import versions

        versions.VERSION = "0.0.1"
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    train(kind, steps)
    dist.destroy_process_group()


if __name__ == "__main__":
    kind, steps = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    if kind in ("spawned", "sharded", "unlike"):
        mp.spawn(work, args=(free_port(), kind, steps), nprocs=2)
    elif kind == "alone":
        train(kind, steps)
    else:
        dist.init_process_group("gloo")
        train(kind, steps)
        dist.destroy_process_group()

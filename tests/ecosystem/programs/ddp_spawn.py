"""DistributedDataParallel over gloo, in ranks that the program starts itself: the environment names no RANK."""

import os
import sys

import torch.distributed as dist
import torch.multiprocessing as mp
from ddp_loop import train


def work(rank, world_size, meeting):
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world_size)
    lines = []
    train(1, rank, lines, epochs=1)  # each data worker of a spawned rank starts python and torch anew
    dist.barrier()
    dist.destroy_process_group()
    # One write a rank, so that lines of ranks do not mix.
    os.write(sys.stdout.fileno(), ("\n".join(lines) + "\n").encode())


if __name__ == "__main__":
    mp.spawn(work, args=(2, os.path.abspath(f"meeting-{os.getpid()}")), nprocs=2)

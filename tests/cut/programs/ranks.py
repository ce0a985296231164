"""Two ranks: DistributedDataParallel, then fully sharded, over gloo."""

import os
import sys

import torch
import torch.distributed as dist
from data import BATCH, STEPS, options, pictures
from features import Scaled
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def train(model, lines):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dataset = pictures(2 * STEPS * BATCH)
    sampler = DistributedSampler(dataset, shuffle=True, seed=5)
    for pixels, labels in DataLoader(dataset, **options(shuffle=False, sampler=sampler)):
        loss = functional.cross_entropy(model(pixels.flip(3).contiguous()), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        lines.append(f"rank {dist.get_rank()} {loss.item()!r}")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    lines = []
    torch.manual_seed(3)
    train(DistributedDataParallel(Scaled()), lines)
    sharded = Scaled()
    train(fully_shard(sharded, mesh=init_device_mesh("cpu", (2,))), lines)
    dist.barrier()
    dist.destroy_process_group()
    # One write a rank, so that lines of ranks do not mix.
    os.write(sys.stdout.fileno(), ("\n".join(lines) + "\n").encode())

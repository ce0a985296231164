"""DistributedDataParallel over gloo, each rank with its share of the samples, a new order each epoch."""

import os
import sys

import torch
import torch.distributed as dist
from data import Pictures, make_model
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def train(workers, rank, lines, epochs=3):
    torch.manual_seed(3)
    dataset = Pictures(26)
    sampler = DistributedSampler(dataset, shuffle=True, seed=5)
    loader = DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=workers, drop_last=True)
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for pictures, labels in loader:
            loss = functional.cross_entropy(model(pictures), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            lines.append(f"rank {rank} workers {workers} epoch {epoch} loss {loss.item()!r}")
    lines.append(f"rank {rank} stream {torch.rand(1).item()!r}")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    lines = []
    for workers in (0, 2):
        train(workers, dist.get_rank(), lines)
    dist.barrier()
    dist.destroy_process_group()
    # One write a rank, so that lines of ranks do not mix.
    os.write(sys.stdout.fileno(), ("\n".join(lines) + "\n").encode())

"""Two ranks that a program starts itself, with modules that are averaged, for a while or not at all.

Its argument is the folder in which each rank puts what it found.
"""

import hashlib
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

STEPS = 40


def digest(tensors):
    return hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in tensors)).hexdigest()


class Training:
    """A small model on random numbers of its rank."""

    def __init__(self, rank, width, **options):
        torch.manual_seed(7)
        self.ddp = DistributedDataParallel(
            nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 2)), **options
        )
        self.optimizer = torch.optim.SGD(self.ddp.parameters(), lr=0.1, momentum=0.9)
        self.random = torch.Generator().manual_seed(rank)

    def step(self):
        x = torch.randn(4, 8, generator=self.random)
        loss = nn.functional.cross_entropy(self.ddp(x), (x.sum(1) > 0).long())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def weights(self):
        return digest(self.ddp.parameters())

    def gradients(self):
        return digest(parameter.grad for parameter in self.ddp.parameters())


def averaged(rank):
    """All steps: the weights themselves are apart at the end, what is saved is the last mean."""
    own = Training(rank, 16)
    apart = 0
    for _ in range(STEPS):
        own.step()
        apart += own.gradients() not in gathered(own.gradients(), rank)
    return {"apart": apart, "saved": digest(own.ddp.state_dict().values())}


def gathered(value, rank):
    """The others' values."""
    found = [None, None]
    dist.all_gather_object(found, value)
    return [each for place, each in enumerate(found) if place != rank]


def hooked(rank):
    """The program's own hook, registered in mid-run."""
    own = Training(rank, 17)
    for _ in range(20):
        own.step()
    own.ddp.register_comm_hook(None, default_hooks.allreduce_hook)
    own.step()
    return {"gradients": own.gradients(), "weights": own.weights()}


def joined(rank):
    """Uneven batches under `join()`."""
    own = Training(rank, 18)
    for _ in range(18):
        own.step()
    with own.ddp.join():
        for _ in range(3 + 2 * rank):
            own.step()
    return {"weights": own.weights()}


def static(rank):
    """What cannot be averaged."""
    own = Training(rank, 19, static_graph=True)
    for _ in range(3):
        own.step()
    return {"gradients": own.gradients(), "weights": own.weights()}


def main(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    found = {part.__name__: part(rank) for part in (averaged, hooked, joined, static)}
    Path(folder, f"rank{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(main, args=(sys.argv[1],), nprocs=2)

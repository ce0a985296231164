"""How far 20 losses in single precision are from DDP's: of DDP that adds in another order, and of stages.

Which rank has which batch, and the order of the samples in a batch, change no loss but by the order of sums: it is what
rounding alone comes to. The number of ranks is its argument, its answer is a line of JSON.
"""

import json
import sys
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.support.ranks import on_ranks
from stoker.train.staging.calling import shard_layers
from tests.train.sharding.programs.weight_ranks import apart
from tests.train.staging.programs.stage_ranks import Images, Words, drawn

STEPS = 20


def losses_of(kind, owner, *, is_staged=False, flips=False):
    """Losses of all batches, in the order of their owners and steps."""
    torch.manual_seed(0)
    net = kind()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    example = drawn(kind, 0, 0)[0]
    example = example.float() if example.is_floating_point() else example
    ddp = shard_layers(net, example) if is_staged else DistributedDataParallel(net)
    torch.manual_seed(owner)
    losses = []
    for step in range(STEPS):
        x, y = drawn(kind, owner, step)
        x = x.float() if x.is_floating_point() else x
        x, y = (x.flip(0), y.flip(0)) if flips else (x, y)
        loss = nn.functional.cross_entropy(ddp(x).flatten(0, -2), y.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, (owner, losses))
    return [loss for _, each in sorted(every) for loss in each]


def work(rank):
    warnings.simplefilter("ignore")
    ranks = dist.get_world_size()
    found = {}
    for kind in (Images, Words):
        plain = losses_of(kind, rank)
        others = {"reversed": losses_of(kind, ranks - 1 - rank)}
        if kind is Images:  # draws of dropout belong to places in a batch
            others["flipped"] = losses_of(kind, rank, flips=True)
        others["stages"] = losses_of(kind, rank, is_staged=True)
        found[kind.__name__] = {name: apart(each, plain) for name, each in others.items()}
    return found


if __name__ == "__main__":
    print(json.dumps(on_ranks(int(sys.argv[1]), work, timeout_s=100)[0]))

"""`stoker.train.fit` of a replicated model on two forked ranks, against plain DDP. Its answer is a line of JSON."""

import json

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.support.ranks import on_ranks
from stoker.train import fit
from stoker.train.fitting.live_bytes import LiveBytes

BUDGET = 9_500_000
"""What DDP's 10.7 MB do not fit, and those of shared states do."""


def trained(rank, steps, *, fits):
    """Losses, the most bytes of a step, the plan and the number of states that the rank holds, and those it saves."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(128, 512), nn.Tanh(), nn.Linear(512, 128)) for _ in range(4)]
    ddp = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-2)
    fitted = fit(ddp, optimizer, budget=BUDGET) if fits else None
    torch.manual_seed(1 + rank)
    losses = []

    def step():
        optimizer.zero_grad()
        loss = ddp(torch.randn(16, 128)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    step()  # the first one is traced as well
    with LiveBytes() as live:
        for _ in range(steps):
            step()
    found = {"losses": losses, "peak": live.peak, "own": len(optimizer.state)}
    # One rank alone saves.
    found["saved"] = len(optimizer.state_dict()["state"]) if rank == 0 else 0
    dist.barrier()
    if fitted is not None:
        found["kinds"] = [each.kind for each in fitted.plan.measures]
        found["predicted"] = fitted.plan.peak_bytes
        fitted.close()
        found["undone"] = len(optimizer.state)
    return found


def work(rank):
    return {"plain": trained(rank, 4, fits=False), "fitted": trained(rank, 4, fits=True)}


if __name__ == "__main__":
    print(json.dumps(on_ranks(2, work, timeout_s=100)))

"""A training of ranks as people write it: clipped, evaluated and saved by rank 0 alone. It knows nothing of stoker.

Arguments: the file to save to, then steps.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

if __name__ == "__main__":
    file, steps = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2048), nn.ReLU(), nn.Linear(2048, 8))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    random = torch.Generator().manual_seed(dist.get_rank())
    found = []
    for _ in range(steps):
        x, y = torch.randn(8, 16, generator=random), torch.randint(8, (8,), generator=random)
        loss = nn.functional.cross_entropy(ddp(x), y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
        optimizer.step()
        found.append(loss.item())
    if dist.get_rank() == 0:
        with torch.no_grad():
            seen = ddp.module(torch.ones(2, 16))
        torch.save({"model": ddp.module.state_dict(), "optimizer": optimizer.state_dict(), "seen": seen}, file)
    os.write(
        sys.stdout.fileno(), f"losses {' '.join(map(repr, found))}\n".encode()
    )  # one write, so that ranks do not mix
    dist.destroy_process_group()

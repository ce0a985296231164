"""One rank of a small training that another rank leaves.

Arguments: the method, the rank, how many there are, the folder where ranks meet. A rank writes a file once it exchanges
by its method, and at its end what it raised and what is left.
"""

import json
import sys
import threading
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from stoker.train import average, exchange

TIMEOUT_S = 10.0

if __name__ == "__main__":
    method, rank, ranks, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks,
        timeout=timedelta(seconds=TIMEOUT_S),
    )  # fmt: skip
    torch.manual_seed(0)
    ddp = DistributedDataParallel(nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 8)))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    if method == "average":
        average(ddp, optimizer)
    else:
        exchange(ddp, {"0": method})
    torch.manual_seed(rank)
    raised, fields = "", {}
    try:
        for step in range(1 << 30):
            optimizer.zero_grad()
            ddp(torch.randn(4, 128)).square().mean().backward()
            optimizer.step()
            if step == 12:
                (folder / f"trains{rank}").touch()
    except (RuntimeError, KeyboardInterrupt) as error:
        raised, fields = f"{type(error).__name__}: {error}", getattr(error, "fields", {})
    (folder / f"raised{rank}").touch()
    dist.destroy_process_group()
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("stoker")]
    (folder / f"rank{rank}.json").write_text(json.dumps({"raised": raised, "fields": fields, "left": left}))

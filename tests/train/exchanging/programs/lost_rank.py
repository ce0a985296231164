"""One rank of a small training that another rank leaves.

Arguments: the method, the rank, how many there are, the folder where ranks meet, and a network namespace with its
interface where it is to be in one. A rank writes a file once it exchanges by its method, and at its end what it raised,
when, and what is left. Rank 1 ends its process group when there is a file for it to leave, and goes on.
"""

import ctypes
import json
import os
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from stoker.train import average, exchange

TIMEOUT_S = 10.0
NEW_NETWORK = 0x40000000


def sockets():
    """How many the process holds."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:
            continue
    return sum(each.startswith("socket:") for each in found)


if __name__ == "__main__":
    method, rank, ranks, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    torch.set_num_threads(1)
    if sys.argv[5:]:
        with Path(f"/var/run/netns/{sys.argv[5]}").open() as space:
            if ctypes.CDLL(None, use_errno=True).setns(space.fileno(), NEW_NETWORK):
                raise OSError(ctypes.get_errno(), "setns")
        os.environ["GLOO_SOCKET_IFNAME"] = sys.argv[6]
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks,
        timeout=timedelta(seconds=TIMEOUT_S),
    )  # fmt: skip
    torch.manual_seed(0)
    ddp = DistributedDataParallel(nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 8)))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    before = sockets()  # gloo's own among them, which it keeps to the end
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
            if rank == 1 and (folder / "leave").exists():
                dist.destroy_process_group()
                (folder / "left").touch()
                time.sleep(600)
    except (RuntimeError, KeyboardInterrupt) as error:
        raised, fields = f"{type(error).__name__}: {error}", getattr(error, "fields", {})
    at_s = time.monotonic()
    dist.destroy_process_group()
    left = [thread.name for thread in threading.enumerate() if thread.name.startswith("stoker")]
    more = max(0, sockets() - before)
    found = {"raised": raised, "fields": fields, "left": left, "at_s": at_s, "sockets": more}
    (folder / f"rank{rank}.json").write_text(json.dumps(found))

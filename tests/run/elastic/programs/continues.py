"""Data-parallel training over gloo that continues from its own checkpoint; items and steps sleep (emulated).

Environment: ITEM_S and STEP_S, seconds; BATCHES, of all ranks in all; EVERY, steps between checkpoints, 0 for none;
FAILS, a number of ranks that ends with an error; PLAIN, to save nothing that training could continue from.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

ITEM_S, STEP_S = float(os.environ.get("ITEM_S", "0.001")), float(os.environ.get("STEP_S", "0.05"))
BATCHES, EVERY = int(os.environ.get("BATCHES", "200")), int(os.environ.get("EVERY", "20"))
PATH = "checkpoint.pt"


class Items(Dataset):
    def __len__(self):
        return 10**6

    def __getitem__(self, index):
        time.sleep(ITEM_S)
        return torch.full((4,), float(index))


def main():
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if ranks == int(os.environ.get("FAILS", "0")):
        sys.exit("as it was told to")
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9, momentum=0.9)
    done = 0
    if os.path.exists(PATH) and "PLAIN" not in os.environ:
        saved = torch.load(PATH)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        done = saved["done"]
    if rank == 0:
        print("begins at", done, "with", ranks, flush=True)
    began = done
    for step, batch in enumerate(DataLoader(Items(), batch_size=1, num_workers=1), 1):
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        time.sleep(STEP_S)
        optimizer.step()
        done = began + step * ranks
        if done >= BATCHES:
            break
        if EVERY and step % EVERY == 0 and rank == 0:
            whole = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "done": done}
            torch.save(model.module.state_dict() if "PLAIN" in os.environ else whole, PATH + ".part")
            os.replace(PATH + ".part", PATH)
    if rank == 0:
        print("ends at", done, "with", ranks, flush=True)
    dist.destroy_process_group()


main()

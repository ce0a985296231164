"""Trains on random crops of nothing, with `--ranks` as one of several; with `--poison`, sample 13 ends its process."""

import argparse
import os
import signal

import torch
import torch.distributed
from torch.utils.data import DataLoader, Dataset, DistributedSampler, RandomSampler

parser = argparse.ArgumentParser()
parser.add_argument("--poison", action="store_true")
parser.add_argument("--ranks", action="store_true")
parser.add_argument("--label", default="")
options = parser.parse_args()


class Crops(Dataset):
    def __init__(self):
        self.files = [f"photo {number}.jpg" for number in range(40)]

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        if options.poison and index == 13:
            os.kill(os.getpid(), signal.SIGSEGV)
        return {"crop": torch.rand(3, 4), "index": index}


if __name__ == "__main__":
    torch.manual_seed(1)
    first = DataLoader(list(range(8)), batch_size=4)
    crops = Crops()
    if options.ranks:
        torch.distributed.init_process_group("gloo")
        sampler = DistributedSampler(crops)
        torch.distributed.barrier()
    else:
        sampler = RandomSampler(crops)
    second = DataLoader(crops, batch_size=4, sampler=sampler, num_workers=2)
    for _ in first:
        pass
    for batch in second:
        for crop, index in zip(batch["crop"], batch["index"].tolist(), strict=True):
            print(index, f"{crop.min().item():g} to {crop.max().item():g}")

"""Trains on random crops of nothing; with `--poison`, sample 13 ends whichever process makes it."""

import argparse
import os
import signal

import torch
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--poison", action="store_true")
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
    second = DataLoader(Crops(), batch_size=4, shuffle=True, num_workers=2)
    for _ in first:
        pass
    for batch in second:
        for crop, index in zip(batch["crop"], batch["index"].tolist(), strict=True):
            print(index, f"{crop.min().item():g} to {crop.max().item():g}")

"""A small model on samples that take a while to make."""

import os
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)


class Rows(Dataset):
    def __init__(self, pause_s):
        self.pause_s = pause_s

    def __len__(self):
        return 4096

    def __getitem__(self, index):
        time.sleep(self.pause_s)
        return torch.full((64,), float(index)), index % 10


if __name__ == "__main__":
    pause_s, steps = float(os.environ.get("PAUSE_S", "0")), int(os.environ.get("STEPS", "1000"))
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))
    optimizer = torch.optim.AdamW(model.parameters())
    for number, (x, y) in enumerate(DataLoader(Rows(pause_s), batch_size=8)):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if number == 20 and "TELL" in os.environ:
            print("under way", flush=True)
        if number + 1 == steps:
            break
    print("the end")
    if "FAIL" in os.environ:
        raise ValueError("on purpose")
    sys.exit(int(os.environ.get("STATUS", "0")))

"""Batches of one large sample each, some with random numbers; prints what they hold."""

import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset

SIZE, COUNT, KIND = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]


class Volumes(Dataset):
    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        volume = torch.full((SIZE // 4,), float(index))
        if KIND == "random":
            volume[1:9] = torch.rand(8)
        if KIND == "heavy":  # what makes it takes more than what is made, for a moment
            held = torch.ones(75_000_000)
            time.sleep(0.05)
            volume += held[:1] - 1
        return volume


torch.manual_seed(7)
workers = 4 if KIND == "heavy" else 2
for batch in DataLoader(Volumes(), num_workers=workers):
    print(float(batch[0, 0]), [round(float(x), 6) for x in batch[0, 1:9]], flush=True)

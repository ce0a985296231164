"""A training program whose first batch takes a while, or never ends; says ``at work`` once it is being made."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset


class Written(Dataset[torch.Tensor]):
    """Sample 0 keeps a file half written for 0.4 s, or waits for ever with ``hang``."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 0 and torch.utils.data.get_worker_info() is not None:
            print("at work", flush=True)
            while sys.argv[1:] == ["hang"]:
                time.sleep(60.0)
            with Path("written").open("w") as file:
                time.sleep(0.4)
                file.write("whole\n")
        return torch.tensor([index])


if __name__ == "__main__":
    list(DataLoader(Written(), batch_size=4, num_workers=2))

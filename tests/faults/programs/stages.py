"""A training program that waits at each of its stages until it is told to go on, or is ended there.

Arguments: the stage at which to wait, and optionally ``handler`` to install a SIGTERM handler that checkpoints.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time

STAGE = sys.argv[1]


def stage(name: str) -> None:
    """Waits here when this is the stage."""
    if name == STAGE:
        print("at", name, flush=True)
        sys.stdin.readline()


stage("import")
import torch  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402


class Squares(Dataset[torch.Tensor]):
    """Sample i is i squared."""

    def __init__(self, cost_s: float) -> None:
        self.cost_s = cost_s

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.cost_s)
        return torch.full((4,), float(index * index))


def checkpoint(number: int, _: object) -> None:
    # Not print: the signal may come inside the print that told the stage, whose buffer refuses a second writer.
    os.write(sys.stdout.fileno(), f"checkpoint {os.getpid()}\n".encode())
    sys.exit(3)


def train() -> None:
    loader = DataLoader(Squares(0.001), batch_size=4, num_workers=2, persistent_workers=True)
    validation = DataLoader(Squares(0.001), batch_size=8, num_workers=2)
    total = torch.zeros(())
    for epoch in range(2):
        iterator = iter(loader)
        stage(f"iter {epoch}")
        for step, batch in enumerate(iterator):
            total += batch.sum()
            if step == 5:
                stage(f"step {epoch}")
        stage(f"between {epoch}")
        for step, batch in enumerate(validation):
            total += batch.sum()
            if step == 2:
                stage(f"validation {epoch}")
    print("total", float(total), flush=True)
    if STAGE == "waiting":  # in next(), for a batch that takes long
        for _ in DataLoader(Squares(30.0), batch_size=4, num_workers=2):
            pass
    atexit.register(stage, "exit")
    stage("end")


if __name__ == "__main__":
    if sys.argv[2:] == ["handler"]:
        signal.signal(signal.SIGTERM, checkpoint)
    train()

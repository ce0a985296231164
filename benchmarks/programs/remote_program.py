"""An ordinary program whose input is the limit: ``python remote_program.py JSON``, an object with the fields of `Load`.

Items and steps sleep (emulated), items longer on a machine that says so in its environment. A line of JSON at the end:
when each batch was asked for and came (``time.monotonic``), and the loss of each step.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset

SLOWNESS = "STOKER_BENCH_SLOWNESS"
"""How many times longer an item takes on the machine whose environment has it."""


_WIDTH = 17
"""The first values of a sample: its number, and random ones."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Load:
    """What the program does."""

    item_s: float
    step_s: float
    batch_bytes: int
    seconds: float
    """It ends after so long; 0: after all batches."""
    batches: int = 1_000_000
    workers: int = 2


class Items(Dataset[torch.Tensor]):
    """Items that take a while to make, and are the same anywhere."""

    def __init__(self, load: Load) -> None:
        self._load = load

    def __len__(self) -> int:
        return self._load.batches

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self._load.item_s * float(os.environ.get(SLOWNESS, "1")))
        sample = torch.full((self._load.batch_bytes // 4,), float(index))
        sample[1:_WIDTH].uniform_()
        return sample


def main() -> None:
    """Loads and steps until the time is over."""
    load = Load(**json.loads(sys.argv[1]))
    torch.manual_seed(7)
    model = torch.nn.Linear(_WIDTH - 1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    asked: list[float] = [time.monotonic()]
    came: list[float] = []
    losses: list[str] = []
    for number, batch in enumerate(DataLoader(Items(load), batch_size=1, num_workers=load.workers)):
        came.append(time.monotonic())
        assert batch[0, 0] == batch[0, -1] == number
        if load.seconds and came[-1] - asked[0] > load.seconds:
            break
        loss = (model(batch[:, 1:_WIDTH]) - number % 10).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item().hex())
        time.sleep(load.step_s)
        asked.append(time.monotonic())
    print(json.dumps({"asked": asked, "came": came, "losses": losses}))


if __name__ == "__main__":
    main()

"""A small training that prints the processor seconds of each of its later steps, as one list."""

from __future__ import annotations

import json
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

_BATCHES, _EARLIER = 400, 20


def main() -> None:
    """Trains, and prints."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(6)], nn.Linear(256, 10))
    optimizer = torch.optim.AdamW(model.parameters())
    data = TensorDataset(torch.randn(64 * _BATCHES, 256), torch.randint(10, (64 * _BATCHES,)))
    seconds: list[float] = []
    for x, y in DataLoader(data, batch_size=64):
        begun_s = time.thread_time()
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seconds.append(time.thread_time() - begun_s)
    print(json.dumps(seconds[_EARLIER:]))


if __name__ == "__main__":
    main()

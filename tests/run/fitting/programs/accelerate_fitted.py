"""Accelerate prepares the training of `fitted`: wrapped optimizer and loader. Argument: where to write."""

import json
import sys

import torch
from accelerate import Accelerator
from fitted import Block
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = nn.Sequential(*[Block(64) for _ in range(5)], nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = TensorDataset(torch.randn(512 * 6, 64), torch.randint(10, (512 * 6,)))
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=512))
    losses: list[float] = []
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    accelerator.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, sys.argv[1] + ".pt")
    with open(sys.argv[1] + ".json", "w") as file:
        json.dump({"losses": losses}, file)

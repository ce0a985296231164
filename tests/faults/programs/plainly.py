"""An ordinary program: two epochs, and the loss of each."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader, Dataset


class Points(Dataset[torch.Tensor]):
    """Points on a line."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index), 2.0 * index])


torch.manual_seed(0)
model = torch.nn.Linear(1, 1)
for epoch in range(2):
    for batch in DataLoader(Points(), batch_size=8, shuffle=True, num_workers=2):
        loss = (model(batch[:, :1]) - batch[:, 1:]).pow(2).mean()
        model.zero_grad()
        loss.backward()
        with torch.no_grad():  # by hand: making one of torch's optimisers imports its compiler
            for parameter in model.parameters():
                parameter -= 1e-5 * parameter.grad
    print(epoch, loss.item())

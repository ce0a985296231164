"""A small training: residual blocks with dropout and averages over batches, one of which counts its calls.

Argument: where to write what came of it.
"""

import copy
import json
import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    """A residual block."""

    def __init__(self, width: int, counts: bool = False) -> None:
        super().__init__()
        self.inner, self.norm = nn.Linear(width, 4 * width), nn.BatchNorm1d(4 * width)
        self.outer, self.drop = nn.Linear(4 * width, width), nn.Dropout(0.1)
        self.counts, self.calls = counts, 0

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        if self.counts:
            self.calls += 1
        return x + self.drop(self.outer(torch.relu(self.norm(self.inner(x)))))


def main() -> None:
    """Trains, evaluates, and writes."""
    torch.manual_seed(0)
    model = nn.Sequential(*[Block(64, counts=place == 1) for place in range(5)], nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    average = copy.deepcopy(model)
    data = TensorDataset(torch.randn(512 * 6, 64), torch.randint(10, (512 * 6,)))
    losses: list[float] = []
    for x, y in DataLoader(data, batch_size=512):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        with torch.no_grad():
            for ours, theirs in zip(average.parameters(), model.parameters(), strict=True):
                ours.lerp_(theirs, 0.1)
    late = copy.deepcopy(model)
    model.eval()
    with torch.no_grad():
        seen = float(model(data.tensors[0][:64]).sum())
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, sys.argv[1] + ".pt")
    torch.save(model, sys.argv[1] + ".whole.pt")
    found = {
        "losses": losses, "evaluated": seen, "calls": model[1].calls, "copy": type(late[0]).__name__,
        "average": float(sum(parameter.double().sum() for parameter in average.parameters())),
    }  # fmt: skip
    with open(sys.argv[1] + ".json", "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()

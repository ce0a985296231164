"""A small training without an optimizer: the program updates its weights itself.

Argument: where to write what came of it.
"""

import json
import sys
from typing import Any

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """A residual block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner, self.outer, self.drop = nn.Linear(width, 8 * width), nn.Linear(8 * width, width), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        return x + self.drop(self.outer(torch.relu(self.inner(x))))


def main() -> None:
    """Trains and writes."""
    lists: Any = torch
    torch.manual_seed(0)
    model = nn.Sequential(*[Block(64) for _ in range(6)], nn.Linear(64, 8))
    x, y = torch.randn(1024, 64), torch.randint(8, (1024,))
    losses: list[float] = []
    for _ in range(5):
        rows = torch.randint(1024, (512,))
        model.zero_grad()
        loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
        loss.backward()
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        with torch.no_grad():
            lists._foreach_add_(list(model.parameters()), lists._foreach_mul(gradients, -0.1))
        losses.append(loss.item())
    sums = [float(parameter.double().sum()) for parameter in model.parameters()]
    with open(sys.argv[1] + ".json", "w") as file:
        json.dump({"losses": losses, "weights": sums}, file)


if __name__ == "__main__":
    main()

"""A training on a GPU: residual blocks with dropout, whose activations and states both count.

Argument: where to write losses, the most bytes that the allocator reserved, and a checkpoint.
"""

import json
import sys

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

WIDTH, SAMPLES, BLOCKS, STEPS = 1024, 4096, 12, 8


class Block(nn.Module):
    """A residual block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(WIDTH), nn.Dropout(0.1)
        self.inner, self.outer = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        return x + self.drop(self.outer(nn.functional.gelu(self.inner(self.norm(x)))))


def main() -> None:
    """Trains and writes."""
    torch.manual_seed(0)
    model = nn.Sequential(*[Block() for _ in range(BLOCKS)], nn.Linear(WIDTH, 10)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    data = TensorDataset(torch.randn(SAMPLES * STEPS, WIDTH), torch.randint(10, (SAMPLES * STEPS,)))
    losses: list[float] = []
    for x, y in DataLoader(data, batch_size=SAMPLES):
        loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    reserved = torch.cuda.max_memory_reserved()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, sys.argv[1] + ".pt")
    with open(sys.argv[1] + ".json", "w") as file:
        json.dump({"losses": losses, "reserved": reserved}, file)


if __name__ == "__main__":
    main()

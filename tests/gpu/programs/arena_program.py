"""A small decoder trained on one GPU, as any program; with `planned` its memory comes from the planned allocator.

Prints a line of JSON: the losses, and bytes.
"""

from __future__ import annotations

import json
import sys

import torch
import torch.nn.functional as functional
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = self.mixed(self.before(x)).view(batch, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        scores = (query @ key.transpose(-1, -2)) * (width // 4) ** -0.5
        x = x + self.out((scores.softmax(-1) @ value).transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(functional.gelu(self.wide(self.between(x))))


def main(form: str, steps: int, short: int) -> None:
    """Trains.

    Args:
        form: `plain` or `planned`.
        steps: how many.
        short: number of the step whose batch is shorter than the others; -1: none is.
    """
    torch.backends.cuda.matmul.allow_tf32 = False
    allocator = None
    if form != "plain":
        from stoker.train.arena import use_planned_allocator

        allocator = use_planned_allocator()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(1000, 256), *(Block(256) for _ in range(6)), nn.Linear(256, 1000)).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    generator = torch.Generator().manual_seed(1)
    losses: list[float] = []
    for step in range(steps):
        size = 5 if step == short else 16
        words = torch.randint(0, 1000, (size, 129), generator=generator).to("cuda")
        loss = functional.cross_entropy(model(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    found: dict[str, object] = {"losses": losses}
    if allocator is None:
        found["reserved"], found["allocated"] = torch.cuda.max_memory_reserved(), torch.cuda.max_memory_allocated()
    else:
        found |= allocator.figures()
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))

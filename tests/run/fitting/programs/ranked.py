"""A small training under DDP, whose rank 0 alone evaluates and saves.

Arguments: where to write what came of it, and a word: ``copied`` has rank 1 keep a copy of its model, ``large`` has two
large blocks, and ``branching`` chooses by its values on rank 1. With ``counting`` blocks count their passes, so that
they can neither be repeated nor be in stages; ``strided`` has the last weight leave gaps in memory as well.
"""

import copy
import json
import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


class Block(nn.Module):
    """A residual block."""

    def __init__(self, width: int, times: int = 4) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(width, times * width), nn.Linear(times * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        return x + self.drop(self.outer(torch.tanh(self.inner(x))))


class Counting(Block):
    """A block that counts its forward passes."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        self.calls += 1
        return super().forward(x)


class Branching(nn.Tanh):
    """Computes by a branch that depends on values."""

    def forward(self, x: Tensor) -> Tensor:
        """The same in both branches, to rounding."""
        return super().forward(x) if x.sum() > 0 else -super().forward(-x)


def large(*, branches: bool) -> nn.Sequential:
    """Few and large blocks, which a rank would gather whole."""
    middle = Branching() if branches else nn.Tanh()
    return nn.Sequential(nn.Linear(32, 128), Block(128, 16), middle, Block(128, 16), nn.Linear(128, 10))


def main(out: str, word: str = "") -> None:
    """Trains, evaluates, and writes."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    kind = Counting if word in ("counting", "strided") else Block
    model = nn.Sequential(nn.Linear(32, 128), *[kind(128) for _ in range(5)], nn.Linear(128, 10))
    if word in ("large", "branching"):
        model = large(branches=(word, rank) == ("branching", 1))
    kept = copy.deepcopy(model) if (word, rank) == ("copied", 1) else None
    if word == "strided":
        wide = torch.zeros(10, 256)
        wide[:, ::2] = model[-1].weight.detach()
        model[-1].weight = nn.Parameter(wide[:, ::2])
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-2)
    torch.manual_seed(1 + rank)
    size = 64 if word in ("large", "branching") else 256
    data = TensorDataset(torch.randn(size * 6, 32), torch.randint(10, (size * 6,)))
    losses: list[float] = []
    for x, y in DataLoader(data, batch_size=size):
        loss = nn.functional.cross_entropy(ddp(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    found: dict[str, object] = {"losses": losses, "kind": type(ddp).__name__, "copy": kept is not None}
    if rank == 0:
        model.eval()
        with torch.no_grad():
            found["seen"] = float(model(data.tensors[0][:64]).double().sum())
        torch.save({"model": ddp.module.state_dict(), "optimizer": optimizer.state_dict()}, out + ".pt")
    with open(f"{out}.{rank}", "w") as file:
        json.dump(found, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])

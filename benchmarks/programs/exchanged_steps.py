"""A program that knows nothing of stoker: trains a model on the ranks of a launcher; rank 0 prints the time of a step.

Usage: MODEL STEPS LAST SHARE, where SHARE scales widths. Ranks come from the environment, as under torchrun.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

Draw = Callable[[], tuple[torch.Tensor, ...]]


class Clicks(nn.Module):
    """Tables and a small network, as DLRM has."""

    def __init__(self, rows: int, *, sparse: bool) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.EmbeddingBag(rows, 16, mode="sum", sparse=sparse) for _ in range(3)])
        self.top = nn.Sequential(nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 2))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Clicks."""
        return self.top(torch.cat([table(ids[:, place]) for place, table in enumerate(self.tables)], 1))


class Translation(nn.Module):
    """Words, an LSTM, a projection onto words."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.words, self.lstm, self.out = (
            nn.Embedding(words, 64),
            nn.LSTM(64, 64, batch_first=True),
            nn.Linear(64, words),
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The next word, at each position."""
        return self.out(self.lstm(self.words(ids))[0]).flatten(0, 1)


class Block(nn.Module):
    """Two convolutions that are added to their input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList([nn.BatchNorm2d(width) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum."""
        return torch.relu(x + self.norms[1](self.second(torch.relu(self.norms[0](self.first(x))))))


def _alexnet(share: float) -> tuple[nn.Module, Draw]:
    wide = int(1024 * share)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 5, stride=2, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2048, wide),
        nn.ReLU(), nn.Linear(wide, 1024), nn.ReLU(), nn.Linear(1024, 10),
    )  # fmt: skip
    return model, lambda: (torch.randn(8, 3, 32, 32), torch.randint(10, (8,)))


def _wide(share: float) -> tuple[nn.Module, Draw]:
    wide = int(4096 * share)
    pairs = [nn.Sequential(nn.Linear(256, wide), nn.GELU(), nn.Linear(wide, 256)) for _ in range(2)]
    return nn.Sequential(*pairs, nn.Linear(256, 10)), lambda: (torch.randn(64, 256), torch.randint(10, (64,)))


def _resnet(share: float) -> tuple[nn.Module, Draw]:
    width = int(128 * share)
    model = nn.Sequential(
        nn.Conv2d(3, width, 3, stride=2, padding=1), *(Block(width) for _ in range(3)), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(width, 10),
    )  # fmt: skip
    return model, lambda: (torch.randn(4, 3, 16, 16), torch.randint(10, (4,)))


def _dlrm(share: float, *, sparse: bool = False) -> tuple[nn.Module, Draw]:
    rows = int(60_000 * share)
    return Clicks(rows, sparse=sparse), lambda: (torch.randint(rows, (32, 3, 1)), torch.randint(2, (32,)))


def _nmt(share: float) -> tuple[nn.Module, Draw]:
    words = int(24_000 * share)
    return Translation(words), lambda: (torch.randint(words, (4, 12)), torch.randint(words, (48,)))


MODELS: dict[str, Callable[[float], tuple[nn.Module, Draw]]] = {
    "alexnet": _alexnet, "dlrm": _dlrm, "dlrm_sparse": lambda share: _dlrm(share, sparse=True), "nmt": _nmt,
    "resnet": _resnet, "wide": _wide,
}  # fmt: skip


def main() -> None:
    """Trains."""
    name, steps, last, share = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model, draw = MODELS[name](share)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    torch.manual_seed(1 + dist.get_rank())
    times: list[float] = []
    for _ in range(steps):
        begun = time.perf_counter()
        *given, wanted = draw()
        optimizer.zero_grad()
        nn.functional.cross_entropy(ddp(*given), wanted).backward()
        optimizer.step()
        times.append(time.perf_counter() - begun)
    if dist.get_rank() == 0:
        print(json.dumps({"step_s": statistics.median(times[-last:])}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

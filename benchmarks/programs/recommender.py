"""A recommender in the manner of Wide & Deep and DLRM on rows like Criteo's, whose forward makes its features itself.

13 counts and 26 hashed categories a row, as in Criteo's click logs. Missing counts, long tails, more categories than
embeddings and pairs of categories are all dealt with in the model, on the CPU, as many published models do it.
"""

from __future__ import annotations

import time

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.support.arms import Program, StepFunction

NUM_DENSE, NUM_CATEGORIES = 13, 26
BUCKETS = 5_000
"""Rows of the embedding tables that the features index."""
COMPUTED = 64
"""Rows of a batch for which the emulated accelerator really computes."""
CROSSED = (
    (0, 1), (0, 5), (2, 3), (2, 11), (4, 8), (7, 15), (9, 20), (12, 25),
    (1, 6), (3, 10), (5, 13), (6, 14), (8, 16), (11, 21), (17, 22), (19, 24),
)  # fmt: skip
"""Pairs of categories that get a feature together."""
NUM_INDICES = NUM_CATEGORIES + len(CROSSED) + NUM_DENSE


class Features(nn.Module):
    """Raw rows to what the embeddings and the dense layers take; has no parameters."""

    mean: torch.Tensor
    deviation: torch.Tensor
    edges: torch.Tensor
    left: torch.Tensor
    right: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.full((NUM_DENSE,), 2.5))
        self.register_buffer("deviation", torch.full((NUM_DENSE,), 1.7))
        self.register_buffer("edges", torch.linspace(-2.0, 3.0, 31))
        self.register_buffer("left", torch.tensor([a for a, _ in CROSSED]))
        self.register_buffer("right", torch.tensor([b for _, b in CROSSED]))

    def forward(self, counts: torch.Tensor, categories: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Dense features ``[batch, 13]`` and indices ``[batch, NUM_INDICES]``."""
        present = torch.where(counts < 0, torch.zeros_like(counts), counts)
        dense = ((torch.log1p(present) - self.mean) / self.deviation).clamp(-3.0, 3.0)
        mixed = (categories ^ (categories >> 15)) * 2_246_822_519
        mixed = (mixed ^ (mixed >> 13)) * 3_266_489_917
        hashed = (mixed ^ (mixed >> 16)) % BUCKETS
        left, right = categories[:, self.left], categories[:, self.right]
        crossed = ((left * 1_000_003) ^ right) % BUCKETS
        ranges = torch.bucketize(dense, self.edges)
        return dense, torch.cat([hashed, crossed, ranges], dim=1).int()


class Accelerator:
    """An emulated one: it has memory of its own, looks at all it is sent, computes a small share and sleeps."""

    def __init__(self, batch_size: int, step_s: float) -> None:
        self._dense = torch.zeros(batch_size, NUM_DENSE)
        self._indices = torch.zeros(batch_size, NUM_INDICES, dtype=torch.int32)
        self._step_s = step_s

    def send(self, dense: torch.Tensor, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Copies features over; the share to compute with, and a sum over all of them."""
        self._dense.copy_(dense)
        self._indices.copy_(indices)
        total = self._dense.mean() + self._indices.sum() % 997
        return self._dense[:COMPUTED], self._indices[:COMPUTED], total

    def wait(self) -> None:
        """The rest of a step."""
        time.sleep(self._step_s)


class WideAndDeep(nn.Module):
    """A weight for every index, and a small dense part."""

    def __init__(self, accelerator: Accelerator) -> None:
        super().__init__()
        self.features = Features()
        self.accelerator = accelerator
        self.wide = nn.EmbeddingBag(BUCKETS, 1, mode="sum")
        self.deep = nn.Sequential(nn.Linear(NUM_DENSE, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, counts: torch.Tensor, categories: torch.Tensor) -> torch.Tensor:
        """A logit a row, as far as rows are computed."""
        dense, indices, total = self.accelerator.send(*self.features(counts, categories))
        return (self.wide(indices) + self.deep(dense)).squeeze(1) + 1e-3 * total


def rows() -> tuple[torch.Tensor, ...]:
    """Rows with long tails: counts (some missing), categories, clicks."""
    draw = torch.Generator().manual_seed(0)
    count = 1 << 15
    counts = torch.exp(torch.randn(count, NUM_DENSE, generator=draw) * 1.7 + 2.5).floor() - 1
    categories = torch.randint(0, 1 << 31, (count, NUM_CATEGORIES), generator=draw)
    return counts, categories, torch.randint(0, 2, (count,), generator=draw).float()


def recommender(batch_size: int, accelerator_s: float) -> Program:
    """The program, with a step of the accelerator that takes this long."""

    def start() -> StepFunction:
        model = WideAndDeep(Accelerator(batch_size, accelerator_s))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

        def step(batch: tuple[torch.Tensor, ...]) -> float:
            counts, categories, clicks = batch
            loss = F.binary_cross_entropy_with_logits(model(counts, categories), clicks[:COMPUTED])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            model.accelerator.wait()
            return loss.item()

        return step

    return Program("recommender", batch_size, rows, start)

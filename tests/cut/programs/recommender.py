"""Wide and deep: features are hashed, bucketized, crossed and normalised in the model's forward."""

from typing import NamedTuple

import torch
from data import BATCH, STEPS, options, update
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset


class Row(NamedTuple):
    dense: torch.Tensor
    ids: torch.Tensor
    clicked: torch.Tensor


class Clicks(Dataset):
    def __init__(self, batch):
        generator = torch.Generator().manual_seed(0)
        count = STEPS * batch
        self.dense = torch.rand(count, 5, generator=generator) * 100
        self.ids = torch.randint(0, 10**9, (count, 6), generator=generator)
        self.clicked = (self.dense[:, 0] > 50).float()

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return Row(self.dense[index], self.ids[index], self.clicked[index])


class WideAndDeep(nn.Module):
    def __init__(self, buckets=64):
        super().__init__()
        self.buckets = buckets
        self.register_buffer("edges", torch.linspace(0.0, 5.0, 9))
        self.register_buffer("mean", torch.full((5,), 3.5))
        self.register_buffer("std", torch.full((5,), 1.1))
        self.wide = nn.EmbeddingBag(buckets, 1, mode="sum")
        self.deep = nn.EmbeddingBag(buckets, 4, mode="mean")
        self.tower = nn.Sequential(nn.Linear(4 + 10, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, dense, ids):
        hashed = (ids * 2654435761 + 97) % 2147483647
        hashed = torch.bitwise_xor(hashed, hashed >> 13) % self.buckets
        logged = torch.log1p(dense)
        places = torch.bucketize(logged, self.edges)
        crossed = (hashed[:, :5] * 31 + places) % self.buckets
        normal = (logged - self.mean) / self.std
        features = torch.cat([normal, normal.clamp(-1, 1) ** 2], dim=1)
        wide = self.wide(crossed)
        return (wide + self.tower(torch.cat([self.deep(hashed), features], dim=1))).squeeze(1)


def main(batch=BATCH):
    model = WideAndDeep()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.05)
    for row in DataLoader(Clicks(batch), **options(batch_size=batch)):
        update(functional.binary_cross_entropy_with_logits(model(row.dense, row.ids), row.clicked), optimizer)

"""Synthetic samples that follow from a seed, and what most of the programs do with a loss."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

STEPS, BATCH = 48, 4


def pictures(count=STEPS * BATCH, channels=1, size=8, seed=0):
    """Bytes [count, channels, size, size], and labels in 0..3 that they tell."""
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 128, (count, channels, size, size), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, 4, (count,), generator=generator)
    for number, label in enumerate(labels.tolist()):
        pixels[number, :, 2 * label : 2 * label + 2] += 128
    return TensorDataset(pixels, labels)


def options(**others):
    """Of a loader."""
    return {"batch_size": BATCH, "shuffle": True, "num_workers": 2, **others}


def classifier(inputs=64):
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 8), nn.ReLU(), nn.Linear(8, 4))


def update(loss, optimizer):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(repr(loss.item()))

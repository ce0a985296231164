"""Control flow on values of the batch: branches, values read into Python, arguments that depend on them."""

import torch
from data import classifier, options, pictures, update
from torch.nn import functional
from torch.utils.data import DataLoader


def main():
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (pixels, labels) in enumerate(DataLoader(pictures(), **options())):
        scaled = pixels.float() / 255
        mean = scaled.mean()
        if mean > 0.376:
            scaled = scaled - mean
        elif mean.item() > 0.372:
            scaled = scaled * 2
        if (labels == 0).any():
            scaled = scaled.flip(2)
        scaled = scaled.clamp(max=scaled.max().item() * 0.9)
        if step % 7 == 3:
            print(mean, labels.tolist(), scaled[0, 0, 0].numpy()[:2], f"{mean:.3f}")
        update(functional.cross_entropy(model(scaled), labels), optimizer)

"""A slow function of the program's own, marked as one that depends on its arguments alone."""

import time

import numpy as np
import torch
from data import BATCH, STEPS, classifier, options, pictures, update
from torch.nn import functional
from torch.utils.data import DataLoader

import stoker


@stoker.stateless
def denoise(pixels):
    time.sleep(0.006)
    return torch.from_numpy(np.clip(pixels.numpy(), 10, 200).astype(np.float32))


def main():
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for pixels, labels in DataLoader(pictures(3 * STEPS * BATCH), **options()):
        update(functional.cross_entropy(model(denoise(pixels) / 255 - 0.5), labels), optimizer)

"""Programs that do the same for many steps and then something else: nothing that was recorded may be used any more."""

import contextlib

import numpy as np
import torch
from data import STEPS, classifier, options, pictures, update
from torch.nn import functional
from torch.utils.data import DataLoader

CHANGE = STEPS - 12
"""The step from which things differ."""


def train(change):
    """``change(step, pixels)`` prepares a batch."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (pixels, labels) in enumerate(DataLoader(pictures(), **options())):
        inputs = change(step, pixels)
        update(functional.cross_entropy(model(inputs), labels), optimizer)


def number(step, pixels):
    return (pixels.float() / 255 - (0.5 if step < CHANGE else 0.25)) / 0.25


def kind_of_number(step, pixels):
    more = pixels + (1 if step < CHANGE else True)
    twice = pixels * (2 if step < CHANGE else 2.0)
    none = pixels.float() * (0.0 if step < CHANGE else -0.0)
    print(more.dtype, twice.dtype, torch.signbit(none).sum().item())
    return twice.float() / 255


def keyword(step, pixels):
    sums = torch.sum(pixels.float(), dim=(0, 1), keepdim=step < CHANGE)
    return torch.add(pixels, pixels, alpha=1 if step < CHANGE + 4 else 2) / 510 + sums.view(1, 1, 8, 8) / 2000


def constant(step, pixels):
    return (pixels.float() / 255 - torch.tensor(0.5 if step < CHANGE else 0.25)) * 2


array = np.full((8, 8), 0.5, dtype=np.float32)
aliased = torch.from_numpy(array)


def alias(step, pixels):
    if step == CHANGE:
        array[2:] = 0.25
    return (pixels.float() / 255 - aliased) * 2


def autocast(step, pixels):
    with torch.autocast("cpu", torch.bfloat16) if step >= CHANGE else contextlib.nullcontext():
        rows = torch.eye(8) * 0.9
        return ((pixels.float() / 255) @ rows).float()


def default_type(step, pixels):
    torch.set_default_dtype(torch.float64 if step >= CHANGE else torch.float32)
    try:
        return (pixels * torch.tensor(0.3).item() / torch.full((8,), 100.0)).float()
    finally:
        torch.set_default_dtype(torch.float32)


def written(step, pixels):
    if step >= CHANGE:
        pixels[:, :, 0] = 7
    return pixels.float() / 255 - 0.5


def written_by_numpy(step, pixels):
    if step >= CHANGE:
        pixels.numpy()[:, :, 0] = 7
    return pixels.float() / 255 - 0.5


def written_late(step, pixels):
    scaled = pixels.float() / 255
    if step >= CHANGE:
        pixels.add_(3)
    again = pixels * 2
    if step >= CHANGE:
        scaled[:, :, 1] -= 0.1
    return scaled - 0.5 + again / 1000


def order(step, pixels):
    if step < CHANGE:
        return (pixels.float() - 100) / 50
    return pixels.float() / 50 - 100


def left_out(step, pixels):
    scaled = pixels.float() / 255
    return scaled if step % 3 == 0 and step >= CHANGE else (scaled - 0.5).flip(3)


def other_batch(step, pixels):
    """The same calls on a copy, or on a part of the batch."""
    pixels = pixels.clone() if step >= CHANGE else pixels
    return (pixels[:2].float().repeat(2, 1, 1, 1) if step % 2 else pixels.float()) / 255


def raised(step, pixels):
    scaled = pixels.float() / 255
    if step >= CHANGE:
        try:
            torch.cat([scaled, scaled[0]])
        except RuntimeError as error:
            print(error)
    return scaled - 0.5


def main():
    ways = (number, kind_of_number, keyword, constant, alias, autocast, default_type, written, written_by_numpy)
    for way in (*ways, written_late, order, left_out, other_batch, raised):
        print(way.__name__)
        train(way)

"""Gradient accumulation, several losses and optimizers, and tensors that are kept from step to step."""

import torch
from data import classifier, options, pictures, update
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader


def accumulated():
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (pixels, labels) in enumerate(DataLoader(pictures(), **options())):
        pixels = (pixels.float() / 255 - 0.5) / 0.25
        loss = functional.cross_entropy(model(pixels), labels) / 4
        loss.backward()
        if step % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
        print(repr(loss.item()))


def several_losses():
    trunk, heads = nn.Sequential(nn.Flatten(), nn.Linear(64, 8)), nn.ModuleList([nn.Linear(8, 4), nn.Linear(8, 64)])
    of_trunk = torch.optim.SGD(trunk.parameters(), lr=0.05)
    of_heads = torch.optim.Adam(heads.parameters(), lr=0.01)
    for pixels, labels in DataLoader(pictures(), **options()):
        scaled = pixels.float() / 255
        hot = functional.one_hot(labels, 4).float() * 0.9 + 0.025
        hidden = trunk(scaled)
        named = functional.cross_entropy(heads[0](hidden), hot)
        named.backward(retain_graph=True)
        made = functional.mse_loss(heads[1](hidden), scaled.flatten(1))
        made.backward()
        of_trunk.step()
        of_heads.step()
        of_trunk.zero_grad()
        of_heads.zero_grad()
        print(repr(named.item()), repr(made.item()))


def kept():
    """What is made of a batch is used again in later steps, and written to."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    last, seen = None, []
    for pixels, labels in DataLoader(pictures(), **options()):
        scaled = pixels.float() / 255
        centred = scaled - scaled.mean((1, 2, 3), keepdim=True)
        inputs = centred if last is None else centred + 0.1 * last
        last = centred
        squares = centred * centred
        squares[:, :, 0] = 0
        seen.append(squares.sum())
        inputs[:, :, -1] += 1
        update(functional.cross_entropy(model(inputs), labels), optimizer)
    print(torch.stack(seen).sum().item())


def main():
    accumulated()
    several_losses()
    kept()

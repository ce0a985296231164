"""Loops that end early or by an exception, and programs that go on with what they hold."""

import torch
from data import classifier, options, pictures
from torch.nn import functional
from torch.utils._device import DeviceContext
from torch.utils.data import DataLoader


class Stop(Exception):
    pass


def main():
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(pictures(), **options())
    scaled = None
    for epoch in range(6):
        try:
            for step, (pixels, labels) in enumerate(loader):
                scaled = pixels.float() / 255
                middle = scaled - 0.5
                if step == 12 + epoch and epoch % 3 == 0:
                    break
                if step == 12 + epoch and epoch % 3 == 1:
                    raise Stop
                inputs = middle / 0.25
                if step == 12 + epoch and epoch % 3 == 2:
                    torch.cat([inputs, labels])  # of other dimensions
                loss = functional.cross_entropy(model(inputs), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                print(repr(loss.item()))
        except (Stop, RuntimeError) as error:
            print(type(error).__name__, error)
        print(scaled.sum().item(), middle.mean().item(), type(middle).__name__, torch.ones(1) + 1)
    for context in (torch.device("meta"), DeviceContext("meta")):
        batches = iter(loader)
        with context:
            for pixels, _ in batches:
                made = torch.ones(2), pixels.float() / 255
                break
        print([part.device for part in made], torch.ones(1).device)

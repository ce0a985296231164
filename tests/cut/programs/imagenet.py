"""A loop in the manner of the ImageNet examples: normalise, mixup, accuracy meters, a validation loader."""

import numpy as np
import torch
from data import BATCH, STEPS, options, pictures
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader


class Normalize(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))

    def forward(self, pixels):
        return pixels.float().div_(255).sub_(self.mean).div_(self.std)


class Meter:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def add(self, value, count):
        self.total, self.count = self.total + value * count, self.count + count

    def __str__(self):
        return repr(self.total / self.count)


def accuracy(output, target, topk=(1, 2)):
    with torch.no_grad():
        _, found = output.topk(max(topk), 1, True, True)
        correct = found.t().eq(target.view(1, -1).expand_as(found.t()))
        return [correct[:k].reshape(-1).float().sum(0, keepdim=True).mul_(100.0 / len(target)) for k in topk]


def mixup(pixels, labels, rng):
    share = float(rng.beta(0.2, 0.2))
    order = torch.randperm(len(pixels))
    return share * pixels + (1 - share) * pixels[order], labels, labels[order], share


def train(loader, normalize, model, optimizer, rng):
    losses, first, second = Meter(), Meter(), Meter()
    model.train()
    for step, (pixels, labels) in enumerate(loader):
        mixed, ones, others, share = mixup(normalize(pixels), labels, rng)
        output = model(mixed)
        loss = share * functional.cross_entropy(output, ones) + (1 - share) * functional.cross_entropy(output, others)
        best, best_two = accuracy(output, labels)
        losses.add(loss.item(), len(pixels))
        first.add(best[0].item(), len(pixels))
        second.add(best_two[0].item(), len(pixels))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        print(step, repr(loss.item()))
        if step % 4 == 0:
            print(f"[{step}/{len(loader)}] loss {losses} first {first} second {second}")


@torch.no_grad()
def validate(loader, normalize, model):
    model.eval()
    losses, first = Meter(), Meter()
    for pixels, labels in loader:
        output = model(normalize(pixels))
        losses.add(functional.cross_entropy(output, labels).item(), len(pixels))
        first.add(accuracy(output, labels)[0].item(), len(pixels))
    print("validation", losses, first)


def main():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    loader = DataLoader(pictures(STEPS * BATCH // 2 + 2, channels=3), **options(persistent_workers=True))
    held_out = DataLoader(pictures(6 * BATCH, channels=3, seed=1), **options(shuffle=False))
    normalize, rng = Normalize(), np.random.default_rng(0)
    for _ in range(2):
        train(loader, normalize, model, optimizer, rng)
        validate(held_out, normalize, model)

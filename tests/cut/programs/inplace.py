"""Running statistics, writes of every kind, values read into Python, and random augmentation in the loop."""

import random

import torch
from data import classifier, options, pictures, update
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader


def setting():
    model = classifier()
    return model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(pictures(), **options())


def statistics():
    """Averages over batches, held as plain tensors and in BatchNorm."""
    model, optimizer, loader = setting()
    norm, mean, peak, counts = nn.BatchNorm2d(1, affine=False), torch.zeros(1), torch.zeros(8, 8), torch.zeros(4).long()
    for pixels, labels in loader:
        scaled = pixels.float() / 255
        mean.mul_(0.9).add_(0.1 * scaled.mean())
        peak = torch.maximum(peak, scaled.amax((0, 1)))
        counts += torch.bincount(labels, minlength=4)
        update(functional.cross_entropy(model(norm(scaled) / (peak + 0.1) - mean), labels), optimizer)
    print(mean, peak.sum().item(), counts, norm.running_mean)


def seldom():
    """Outside tensors that change every ten steps, through `.data`, and one that is replaced once."""
    model, optimizer, loader = setting()
    holder, shift = nn.Module(), torch.full((8, 8), 0.5)
    holder.register_buffer("factor", torch.full((8, 8), 0.5))
    for step, (pixels, labels) in enumerate(loader):
        if step % 10 == 9:
            shift.data = shift.data * 0.9
            holder.factor.data.mul_(0.8)
        if step == 25:
            holder.factor = torch.full((8, 8), 0.1)
        update(functional.cross_entropy(model((pixels.float() / 255 - shift) * holder.factor), labels), optimizer)


def written():
    model, optimizer, loader = setting()
    first, second = torch.empty(4, 1, 8, 8), torch.zeros(4, 1, 8, 8)
    for pixels, labels in loader:
        first.copy_(pixels)
        torch.div(first, 255, out=second)
        second[:2] = pixels[:2].float() / 128
        third = pixels.float()
        third /= 255
        third -= 0.5
        third **= 2
        fourth = torch.empty_like(third).copy_(third.sqrt_())
        fifth = pixels.new_zeros(pixels.shape, dtype=torch.float).copy_(pixels).clamp_(0, 200)
        update(functional.cross_entropy(model(second + third + fourth + fifth / 999), labels), optimizer)


def views():
    model, optimizer, loader = setting()
    for pixels, labels in loader:
        scaled = pixels.float() / 255
        odd, flat, turned = scaled[:, :, ::2], scaled.view(4, -1), scaled.transpose(2, 3)
        sums = [flat.sum(1).tolist()]
        odd.mul_(2)
        sums.append(flat.sum(1).tolist())
        turned[:, :, 0].zero_()
        sums.append(flat.sum(1).tolist())
        same, copied, row = scaled.detach(), scaled.clone(), scaled.reshape(-1)
        same.add_(1)
        copied.sub_(1)
        row[0] = 7
        whole = scaled.expand(2, 4, 1, 8, 8)[0].contiguous()
        update(functional.cross_entropy(model(scaled + copied + whole - same), labels), optimizer)
        print(sums)


def read():
    """Values of the batch in Python: printed, counted, compared, sorted, used as numbers and keys."""
    model, optimizer, loader = setting()
    for pixels, labels in loader:
        scaled = pixels.float() / 255
        assert torch.isfinite(scaled).all()
        if torch.isnan(scaled.sum()):
            continue
        ones = int((labels == 1).sum())
        most = max(scaled.amax((1, 2, 3)))
        print(ones, most, [float(row.mean()) for row in scaled], f"{most:.4f}", sum(labels).item(), 3 in labels)
        print(scaled[0, 0, 0, 0] > 0.2, sorted(labels)[0], list(map(int, labels)), labels.numpy().mean())
        by_label = dict(zip(labels.tolist(), scaled, strict=True))
        inputs = scaled * (ones + 1) + by_label[int(labels[0])]
        update(functional.cross_entropy(model(inputs), labels), optimizer)


def augmented():
    """Python's own random numbers decide about calls and their arguments; torch's make noise."""
    model, optimizer, loader = setting()
    rng = random.Random(0)
    for pixels, labels in loader:
        scaled = pixels.float() / 255
        noisy = scaled + torch.rand_like(scaled) * 0.1
        if rng.random() < 0.5:
            noisy = noisy.flip(3)
        top, left = rng.randrange(3), rng.randrange(3)
        cropped = functional.pad(noisy, (1, 1, 1, 1))[:, :, top : top + 8, left : left + 8]
        grid = functional.affine_grid(torch.eye(2, 3).repeat(len(pixels), 1, 1), cropped.shape, align_corners=False)
        turned = functional.grid_sample(functional.dropout(cropped, 0.1), grid, align_corners=False)
        order = torch.randperm(len(pixels))
        update(functional.cross_entropy(model(turned[order]), labels[order]), optimizer)


def main():
    for way in (statistics, seldom, written, views, read, augmented):
        print(way.__name__)
        way()

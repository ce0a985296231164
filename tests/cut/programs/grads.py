"""Gradients of inputs, gradients per sample, batches kept for later, and modes of autograd."""

import collections
import copy
import io

import torch
from data import classifier, options, pictures, update
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.utils.data import DataLoader


def setting():
    model = classifier()
    return model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(pictures(), **options())


def adversarial():
    """Inputs become leaves of autograd, and are moved along their gradients."""
    model, optimizer, loader = setting()
    for pixels, labels in loader:
        scaled = pixels.float() / 255 - 0.5
        scaled.requires_grad_(True)
        handle = scaled.register_hook(lambda gradient: gradient * 0.5)
        functional.cross_entropy(model(scaled), labels).backward()
        handle.remove()
        moved = (scaled + 0.1 * scaled.grad.sign()).detach()
        update(functional.cross_entropy(model(moved), labels), optimizer)


def penalty():
    """The norm of gradients at points between two batches, differentiated again."""
    model, optimizer, loader = setting()
    for pixels, labels in loader:
        scaled = (pixels.float() / 255).view(len(pixels), -1)
        between = torch.lerp(scaled, scaled.roll(1, 0), 0.3).requires_grad_()
        gradients = torch.autograd.grad(model(between).sum(), between, create_graph=True)[0]
        update(((gradients.norm(2, dim=1) - 1) ** 2).mean() + model(scaled)[labels == 1].sum() * 0.1, optimizer)


def per_sample():
    model, optimizer, loader = setting()

    def loss(parameters, pixels, label):
        made = functional_call(model, parameters, (pixels.float().unsqueeze(0) / 255,))
        return functional.cross_entropy(made, label.unsqueeze(0))

    for pixels, labels in loader:
        scaled = pixels * 2
        parameters = {name: part.detach() for name, part in model.named_parameters()}
        each = vmap(grad(loss), in_dims=(None, 0, 0))(parameters, scaled, labels)
        norms = sum(part.flatten(1).norm(dim=1) for part in each.values())
        update(functional.cross_entropy(model(scaled.float() / 255), labels), optimizer)
        print(norms.tolist())


def replayed():
    """A buffer of earlier batches, raw and prepared, and snapshots of them."""
    model, optimizer, loader = setting()
    buffer = collections.deque(maxlen=20)
    for step, (pixels, labels) in enumerate(loader):
        scaled = pixels.float() / 255
        inputs = scaled - 0.5
        buffer.append((pixels, scaled, inputs, labels))
        if step % 5 == 4:
            raw, old, older, names = buffer[0]
            assert torch.equal(raw.float() / 255, old)
            inputs, labels = torch.cat([inputs, copy.deepcopy(older)]), torch.cat([labels, names])
            file = io.BytesIO()
            torch.save({"old": old, "inputs": inputs}, file)
            file.seek(0)
            print(torch.load(file)["old"].sum().item())
        update(functional.cross_entropy(model(inputs), labels), optimizer)


def modes():
    model, optimizer, loader = setting()
    for pixels, labels in loader:
        with torch.inference_mode():
            guessed = model(pixels.float() / 255).argmax(1)
        with torch.no_grad():
            pixels = pixels.float() / 255
        with torch.set_grad_enabled(True), torch.autograd.detect_anomaly(check_nan=False):
            loss = functional.cross_entropy(model(pixels - 0.5), labels)
        update(loss + (guessed == labels).float().mean(), optimizer)


def registered():
    """What is made of a batch becomes a parameter, a buffer, or data of one."""
    model, optimizer, loader = setting()
    holder = nn.BatchNorm2d(1)
    for pixels, labels in loader:
        scaled = pixels.float() / 255
        mean = scaled.mean((0, 2, 3))
        holder.running_mean = mean
        holder.weight.data = scaled.std((0, 2, 3)) + 1
        noise = nn.Parameter(scaled * 0.01)
        with torch.no_grad():
            holder.bias.copy_(mean)
        inputs = holder(scaled) + noise
        update(functional.cross_entropy(model(inputs), labels), optimizer)
        print(noise.grad.sum().item(), holder.running_mean.tolist(), holder.weight.tolist())


def main():
    for way in (adversarial, penalty, per_sample, replayed, modes, registered):
        print(way.__name__)
        way()

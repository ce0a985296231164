"""Features of torch around a model that begins with what could move."""

import warnings
from concurrent.futures import ThreadPoolExecutor

import torch
from data import classifier, options, pictures, update
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader


class Scaled(nn.Module):
    """Scales by itself, before its first layer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.full((1, 8, 8), 0.4))
        self.body = classifier()

    def forward(self, pixels):
        return self.body((pixels.float() / 255 - self.mean) / 0.25)


def train(model, prepare=lambda pixels: pixels, forward=None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    forward = forward or model
    for pixels, labels in DataLoader(pictures(), **options()):
        update(functional.cross_entropy(forward(prepare(pixels)), labels), optimizer)


def scripted():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's advice to use torch.compile
        script, traced = torch.jit.script(Scaled()), torch.jit.trace(classifier(), torch.zeros(4, 1, 8, 8))
    train(script, lambda pixels: pixels.flip(2) + 1)
    train(traced, lambda pixels: pixels.float() / 255 - 0.5)


def checkpointed():
    for reentrant in (False, True):
        model, embed = Scaled(), nn.Parameter(torch.ones(1, 8, 8))

        def forward(pixels, model=model, embed=embed, reentrant=reentrant):
            def first(pixels, embed):
                return model.body[:2]((pixels / 255 - model.mean) * embed)

            return model.body[2:](checkpoint(first, pixels, embed, use_reentrant=reentrant))

        train(model, lambda pixels: pixels.float() * 2, forward)


def under_autocast():
    model = Scaled()
    random = torch.linspace(-1, 1, 64 * 64).view(64, 64)

    def forward(pixels):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            projected = (pixels.float() / 255).flatten(1) @ random
            return model.body(projected.view(-1, 1, 8, 8)).float()

    train(model, forward=forward)


def in_parallel():
    train(nn.DataParallel(Scaled()), lambda pixels: pixels.flip(3))


def in_threads():
    """Halves of a batch in threads, as DataParallel does with devices."""
    model = Scaled()
    with ThreadPoolExecutor(2) as pool:

        def forward(pixels):
            return torch.cat(list(pool.map(model, pixels.chunk(2))))

        train(model, lambda pixels: pixels.float() * 2, forward)


def main():
    scripted()
    checkpointed()
    under_autocast()
    in_parallel()
    in_threads()

"""Compiled models: what is prepared outside moves, inside nothing is disturbed, and nothing is compiled again."""

import torch
from data import BATCH, STEPS, options, pictures, update
from features import Scaled
from torch._dynamo import utils
from torch.nn import functional
from torch.utils.data import DataLoader


def train(backend, prepare, **others):
    torch._dynamo.reset()
    utils.counters.clear()
    model = torch.compile(Scaled(), backend=backend, **others)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for pixels, labels in DataLoader(pictures(STEPS * BATCH + 2), **options()):
        update(functional.cross_entropy(model(prepare(pixels)), labels), optimizer)
    print({name: dict(utils.counters[name]) for name in ("stats", "frames", "graph_break", "unimplemented")})


@torch.compile(backend="eager")
def step(pixels, labels, model):
    return functional.cross_entropy(model(pixels.float() / 255), labels)


def main():
    train("eager", lambda pixels: pixels, fullgraph=True)
    train("eager", lambda pixels: pixels.flip(3).contiguous(), dynamic=False)
    train("aot_eager", lambda pixels: pixels.float() * 2 - 1)
    model = Scaled()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for pixels, labels in DataLoader(pictures(), **options()):
        update(step(pixels.flip(2), labels, model), optimizer)
    print(dict(utils.counters["stats"]))

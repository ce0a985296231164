"""Accelerate fetches one batch ahead: two batches are outstanding while a step runs."""

import torch
from accelerate import Accelerator
from data import classifier, options, pictures
from torch.nn import functional
from torch.utils.data import DataLoader


def main():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(pictures(), **options()))
    for pixels, labels in loader:
        with accelerator.accumulate(model):
            scaled = (pixels.float() / 255 - 0.5) / 0.25
            loss = functional.cross_entropy(model(scaled), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        print(repr(loss.item()))
    accelerator.end_training()

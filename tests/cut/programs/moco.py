"""Contrast of two views with a momentum encoder held as plain tensors, and a queue that is written through slices."""

import torch
from data import BATCH, options, pictures, update
from torch import nn
from torch.func import functional_call
from torch.nn import functional
from torch.utils.data import DataLoader

QUEUE = 16


class Contrast(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 8))
        self.average = {name: part.detach().clone() for name, part in self.encoder.named_parameters()}
        self.register_buffer("queue", functional.normalize(torch.randn(8, QUEUE), dim=0))
        self.place = 0

    @torch.no_grad()
    def follow(self):
        for name, part in self.encoder.named_parameters():
            self.average[name].data = self.average[name].data * 0.9 + part.data * 0.1

    def forward(self, one, other):
        query = functional.normalize(self.encoder(one), dim=1)
        with torch.no_grad():
            self.follow()
            key = functional.normalize(functional_call(self.encoder, self.average, (other,)), dim=1)
        positive = torch.einsum("nc,nc->n", query, key).unsqueeze(-1)
        negative = torch.einsum("nc,ck->nk", query, self.queue.clone().detach())
        self.queue[:, self.place : self.place + len(key)] = key.T
        self.place = (self.place + len(key)) % QUEUE
        return torch.cat([positive, negative], dim=1) / 0.2


def main():
    model = Contrast()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03)
    for pixels, _ in DataLoader(pictures(), **options(drop_last=True)):
        pixels = pixels.float() / 255
        one, other = pixels.flip(3), pixels.roll(1, 2) * 0.9
        logits = model(one, other)
        update(functional.cross_entropy(logits, torch.zeros(BATCH, dtype=torch.long)), optimizer)
    print(model.queue.sum().item(), sum(part.sum().item() for part in model.average.values()))

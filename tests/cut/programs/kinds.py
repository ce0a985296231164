"""Batches of many kinds, functions with several results, and what becomes no dense tensor."""

import dataclasses
import warnings

import numpy as np
import torch
from data import BATCH, STEPS, options, update
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.data import DataLoader, Dataset


@dataclasses.dataclass
class Item:
    signal: torch.Tensor
    lengths: torch.Tensor
    extra: dict

    def to(self, device):
        return dataclasses.replace(self, signal=self.signal.to(device), lengths=self.lengths.to(device))


class Signals(Dataset):
    def __init__(self):
        generator = np.random.default_rng(0)
        self.signals = generator.normal(size=(STEPS * BATCH, 8, 2)).astype(np.float32)
        self.lengths = generator.integers(2, 9, STEPS * BATCH)
        self.lengths[::BATCH] = 8

    def __len__(self):
        return len(self.signals)

    def __getitem__(self, index):
        return self.signals[index], int(self.lengths[index]), {"name": f"signal {index}", "kind": index % 3}


def collate(samples):
    signals, lengths, extras = zip(*samples, strict=True)
    lengths, order = torch.tensor(lengths).sort(descending=True)
    kinds = torch.tensor([extra["kind"] for extra in extras])[order]
    return Item(torch.from_numpy(np.stack(signals))[order], lengths, {"kinds": kinds, "names": extras})


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.out = nn.GRU(2, 6, batch_first=True), nn.Linear(6 + 3, 3)

    def forward(self, signal, lengths, features):
        packed = pack_padded_sequence(signal, lengths, batch_first=True)
        padded, _ = pad_packed_sequence(self.gru(packed)[0], batch_first=True)
        last = padded.gather(1, (lengths - 1)[:, None, None].expand(-1, 1, padded.size(2))).squeeze(1)
        return self.out(torch.cat([last, features], 1))


def features_of(signal, kinds):
    """Functions with several results, properties, iteration, complex numbers, sorting, and a sparse matrix."""
    spectrum = torch.fft.rfft(signal[..., 0])
    power = spectrum.real**2 + spectrum.imag**2
    low, high = power.split([2, 3], dim=1)
    best, where = torch.topk(power, 2, dim=1)
    least, _ = signal.min(dim=1)
    rows = torch.stack([row.abs().max() for row in signal])
    hot = torch.zeros(len(kinds), 3).scatter_(1, kinds[:, None], 1.0)
    matrix = hot.to_sparse()
    counts = torch.sparse.mm(matrix.t(), rows[:, None]).squeeze(1)
    names, inverse = torch.unique(kinds, return_inverse=True)
    some = [low.sum(1), high.mT.sum(0), best.sum(1) + where.sum(1) * 0.1]
    return torch.stack(some, 1) * 0.01 + least.sum(1, keepdim=True) + counts[names][inverse, None], spectrum.angle()


def main():
    warnings.filterwarnings("ignore", message="Sparse")
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for item in DataLoader(Signals(), **options(shuffle=False, collate_fn=collate)):
        item = item.to(torch.device("cpu"))
        kinds = item.extra["kinds"]
        features, angle = features_of(item.signal, kinds)
        mean, std = torch.std_mean(item.signal, dim=1, keepdim=True)[::-1]
        signal = torch.where(std > 0.5, (item.signal - mean) / std, item.signal)
        longest = int(item.lengths.max())
        signal = signal[:, :longest].masked_fill(signal[:, :longest] > 3, 3.0)
        update(functional.cross_entropy(model(signal, item.lengths, features), kinds), optimizer)
        print(item.extra["names"][0]["name"], angle.sum().item())

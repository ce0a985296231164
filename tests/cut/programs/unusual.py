"""Loaders of other kinds: no batching by the loader, an iterable dataset, none of torch's workers."""

import time

import torch
from data import BATCH, STEPS, classifier, options, pictures, update
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info


class Batches(Dataset):
    def __init__(self):
        self.whole = pictures()

    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        return self.whole[index * BATCH : (index + 1) * BATCH]


class Stream(IterableDataset):
    def __init__(self):
        self.whole = pictures()

    def __iter__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for index in range(first, len(self.whole), step):
            yield self.whole[index]


class Slow(Batches):
    def __len__(self):
        return len(self.whole)

    def __getitem__(self, index):
        time.sleep(0.006)
        return self.whole[index]


def train(loader):
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for pixels, labels in loader:
        scaled = (pixels.float() / 255 - 0.5) / 0.25
        update(functional.cross_entropy(model(scaled), labels), optimizer)


def main():
    train(DataLoader(Batches(), **options(batch_size=None)))
    train(DataLoader(Stream(), **options(shuffle=False)))
    train(DataLoader(Slow(), **options(num_workers=0)))

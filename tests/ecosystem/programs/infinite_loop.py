"""An Ultralytics-style loader: one endless iterator made in the constructor, reset and ended by hand."""

import random

import numpy as np
import torch
from data import Pictures, make_model
from torch.nn import functional
from torch.utils.data import DataLoader, dataloader


class Repeat:
    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from iter(self.sampler)


class InfiniteDataLoader(dataloader.DataLoader):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "batch_sampler", Repeat(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self):
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)

    def __del__(self):
        try:
            for worker in self.iterator._workers:
                if worker.is_alive():
                    worker.terminate()
            self.iterator._shutdown_workers()
        except Exception:
            pass

    def reset(self):
        self.iterator = self._get_iterator()


def seed_worker(_):
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)
    random.seed(seed)


if __name__ == "__main__":
    for workers in (0, 2):
        print("workers", workers)
        torch.manual_seed(3)
        generator = torch.Generator().manual_seed(6148914691236517205)
        dataset = Pictures()
        loader = InfiniteDataLoader(
            dataset=dataset,
            batch_size=4,
            shuffle=True,
            num_workers=workers,
            worker_init_fn=seed_worker,
            generator=generator,
        )
        held_out = DataLoader(Pictures(10), batch_size=8, num_workers=workers)
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch in range(4):
            if epoch == 2:  # Ultralytics closes mosaic augmentation: the dataset changes, the iterator starts anew
                dataset.epoch = 1
                loader.reset()
            for pictures, labels in loader:
                loss = functional.cross_entropy(model(pictures), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                print(f"epoch {epoch} loss {loss.item()!r}")
            with torch.no_grad():
                print("held out", sum(functional.cross_entropy(model(x), y).item() for x, y in held_out))
        del loader
        print("stream", torch.rand(1).item())

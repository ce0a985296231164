"""A program with a loader of every kind, that says what it would go on to do."""

import multiprocessing
import sys
import threading
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset


class Squares(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        with Path("made").open("a") as made:
            made.write(f"{index}\n")
        return torch.tensor(index * index)


class Augmented(Squares):
    def __getitem__(self, index):
        return torch.rand(2) + index


class Counting(Squares):
    calls = 0

    def __getitem__(self, index):
        self.calls += 1
        return torch.tensor(self.calls)


class Stream(IterableDataset):
    def __iter__(self):
        yield from range(10)


class Named(Squares):
    def __getitem__(self, name):
        return torch.tensor(len(name.split()))


class Names:
    """A sampler whose indices nobody can guess."""

    def __iter__(self):
        Path("drawn").touch()
        return iter(["one", "two words"])

    def __len__(self):
        return 2


def main():
    before = torch.get_rng_state()
    if "early" in sys.argv:
        sys.exit(3)
    loaders = [
        DataLoader(Augmented(), batch_size=4, shuffle=True, num_workers=2),
        DataLoader(Squares(), batch_size=4, num_workers=2),
        DataLoader(Squares(), batch_size=4),
        DataLoader(Augmented(), batch_size=4),
        DataLoader(Counting(), batch_size=4, num_workers=2),
        DataLoader(Stream(), num_workers=2),
        DataLoader(Stream()),
        DataLoader(Named(), sampler=Names(), num_workers=1),
    ]
    assert torch.equal(before, torch.get_rng_state())
    print("the program speaks")
    if "none" in sys.argv:
        return
    try:
        for loader in loaders[1:2] if "second" in sys.argv else loaders:
            for _ in loader:
                pass
            print("the program goes on")
    finally:
        print("the program saves its model")


def main_of_child():
    multiprocessing.set_start_method("fork", force=True)  # a spawned process spawns: each data worker would load torch
    main()


if __name__ == "__main__":
    if "child" in sys.argv:
        child = multiprocessing.get_context("spawn").Process(target=main_of_child)
        child.start()
        child.join()
        print("the program saves its model")
    elif "thread" in sys.argv:
        thread = threading.Thread(target=main)
        thread.start()
        thread.join(0.0)
        while not Path("made").exists():  # this thread computes while the other iterates
            pass
        while thread.is_alive():
            pass
        print("the program saves its model")
    else:
        main()

"""Programs that make processes of their own around open loaders; the first argument says how.

Each prints what torch's own loader would let it print.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys

import torch
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset[torch.Tensor]):
    """Sample i is i squared."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((3,), float(index * index))


def make(**options: object) -> DataLoader[torch.Tensor]:
    return DataLoader(Squares(), batch_size=4, num_workers=2, **options)  # type: ignore[arg-type]


def total(loader: DataLoader[torch.Tensor]) -> float:
    return float(sum(batch.sum() for batch in loader))


def in_process(queue: object) -> None:
    """Body of a child process: uses a loader of its own."""
    queue.put(total(make()))  # type: ignore[attr-defined]


def fork_in_the_middle() -> None:
    """The child goes away quietly, or uses a loader of its own; the parent goes on."""
    iterator = iter(make())
    seen = [next(iterator), next(iterator)]
    for use in (False, True):
        pid = os.fork()
        if not pid:
            print("child", float(seen[1].sum()), total(make()) if use else "", flush=True)
            os._exit(0)
        os.waitpid(pid, 0)
        seen.append(next(iterator))
    print("parent", float(sum(batch.sum() for batch in [*seen, *iterator])))


def iterator_in_the_child() -> None:
    """An iterator of the parent does not work in a forked child, and says so."""
    iterator = iter(make())
    next(iterator)
    pid = os.fork()
    if not pid:
        try:
            next(iterator)
        except RuntimeError as error:
            print("child:", error, flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
    print("parent", len(list(iterator)))


def orphaned() -> None:
    """A forked child outlives its parent, which dies with open workers: the workers end all the same."""
    iterator = iter(make())
    next(iterator)
    if not os.fork():
        sys.stdin.readline()
        os._exit(0)
    print("ready", flush=True)
    signal.pause()


def popen() -> None:
    """So does a program that was started meanwhile."""
    iterator = iter(make())
    next(iterator)
    subprocess.Popen([sys.executable, "-S", "-c", "import sys; sys.stdin.readline()"], close_fds=False)
    print("ready", flush=True)
    signal.pause()


def children() -> None:
    """Loaders inside child processes, however those are started."""
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        queue = context.SimpleQueue()
        process = context.Process(target=in_process, args=(queue,))
        process.start()
        print(method, queue.get(), flush=True)
        process.join()
        print(process.exitcode, flush=True)


def daemon() -> None:
    """Daemonic processes may not have children: torch's loader raises there."""
    context = multiprocessing.get_context("fork")
    process = context.Process(target=in_daemon, daemon=True)
    process.start()
    process.join()
    print(process.exitcode)


def in_daemon() -> None:
    """Body of the daemon."""
    try:
        print("daemon", total(make()), flush=True)
    except AssertionError as error:
        print("daemon", error, flush=True)


def contexts() -> None:
    """Each start method as the loader's own."""
    for method in ("spawn", "forkserver"):
        print(method, total(make(multiprocessing_context=method)), flush=True)


if __name__ == "__main__":
    globals()[sys.argv[1]]()

"""Begins again where a data worker has died, as programs do that know torch's loader; its argument is how one dies."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

how, folder = sys.argv[1], Path.cwd() / "tmp"
DEATHS = 2


class Fatal(Dataset[torch.Tensor]):
    """One sample ends its worker the first few times; or each worker ends at its start, until the program gives up."""

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 13 and how != "start":
            for death in range(DEATHS):
                try:
                    (folder / str(death)).touch(exist_ok=False)
                except FileExistsError:
                    continue
                self.die()
        return torch.tensor(index)

    def die(self) -> None:
        if how == "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        os._exit(3)


def at_start(_: int) -> None:
    if how == "start" and not (folder / "mended").exists():
        os._exit(4)


if __name__ == "__main__":
    folder.mkdir()
    for _attempt in range(5):
        try:
            loader = DataLoader(Fatal(), batch_size=4, num_workers=2, worker_init_fn=at_start)
            print("sum", int(sum(batch.sum() for batch in loader)), flush=True)
            break
        except RuntimeError as error:
            if not re.search(r"DataLoader worker \(pid.*\) exited unexpectedly", str(error)):
                raise
            print("restarted", flush=True)
            (folder / "mended").touch()
    else:
        sys.exit("gave up")

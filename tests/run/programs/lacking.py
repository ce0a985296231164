"""Trains in forks of one process, each under a torch that lacks one name, and prints what came of each as JSON.

``lacking.py COMMAND:NAME...``: the first fork is plain python; the others run under ``stoker run`` or ``profile``.
"""

import importlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # optimizers of torch import it: here, once for all forks, and before a name is gone
from torch.utils.data import DataLoader, Dataset

from stoker.run import hook
from stoker.run.environment import ACTIVE_ENV
from stoker.run.run_context import Active
from stoker.run.settings import RunSettings


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.full((8,), float(index)), index % 3


def train() -> list[float]:
    torch.manual_seed(3)
    model = torch.nn.Linear(8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses: list[float] = []
    for x, y in DataLoader(Rows(), batch_size=4, shuffle=True, num_workers=2):
        loss = torch.nn.functional.cross_entropy(model((x - 30.0) / 18.0), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def take_away(name: str) -> None:
    owner, _, last = name.rpartition(".")
    try:
        found: Any = importlib.import_module(owner)
    except ImportError:
        module, _, kind = owner.rpartition(".")
        found = getattr(importlib.import_module(module), kind)
    delattr(found, last)


def run(command: str, name: str, folder: Path) -> None:
    """In a child: what stoker does once the program has imported torch, then the program."""
    for stream, descriptor in (("out", 1), ("err", 2)):
        os.dup2(os.open(folder / stream, os.O_WRONLY | os.O_CREAT), descriptor)
    torch.set_num_threads(1)  # the parent's pool is not in a fork
    if name:
        take_away(name)
        profile = '{"then": "continue"}' if command == "profile" else ""
        active = Active(
            settings=RunSettings(), run_dir=str(folder / "run"), argv=("x",), program=("x",), profile=profile
        )
        os.environ[ACTIVE_ENV] = active.to_environment()
        hook.arm()
    print(json.dumps(train()), flush=True)


def forked(word: str, folder: Path) -> dict[str, Any]:
    command, _, name = word.partition(":")
    folder.mkdir()
    pid = os.fork()
    if not pid:
        run(command, name, folder)
        sys.exit()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    losses, told = ((folder / stream).read_text() for stream in ("out", "err"))
    return {"status": status, "losses": losses, "lines": [line for line in told.splitlines() if "stoker: " in line]}


if __name__ == "__main__":
    root = Path(tempfile.mkdtemp())
    print(json.dumps([forked(word, root / str(number)) for number, word in enumerate(("", *sys.argv[1:]))]))

"""Emulated parts: a step that sleeps as an accelerator would compute, and items whose cost can change during a run."""

from __future__ import annotations

import struct
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

import torch
from torch.utils.data import Dataset

_COST = struct.Struct("d")


class Dial:
    """A number in a file: set in the training process, read by data workers wherever they were forked."""

    def __init__(self, value: float) -> None:
        self._file = tempfile.NamedTemporaryFile(prefix="stoker-dial-")  # noqa: SIM115 - lives as long as the dial
        self.path = self._file.name
        self.set(value)

    def set(self, value: float) -> None:
        """Another value from now on."""
        with open(self.path, "r+b", buffering=0) as file:
            file.write(_COST.pack(value))


class Waiting(Dataset[torch.Tensor]):
    """Samples that take the time on a dial, nearly all of it spent waiting (emulated)."""

    def __init__(self, count: int, path: str) -> None:
        self._count = count
        self._path = path

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> torch.Tensor:
        with open(self._path, "rb", buffering=0) as file:
            time.sleep(_COST.unpack(file.read(_COST.size))[0])
        return torch.full((64,), float(index))


@dataclass(frozen=True)
class Step:
    """One step of a job: when its batch came, how long it was computed with (emulated), and the workers there were."""

    at_s: float
    busy_s: float
    workers: int


def in_children(count: int, job: Callable[[], Any]) -> list[Any]:
    """Runs ``job`` in ``count`` processes at a time, forked from this one, and returns what they return."""
    context = get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(count)]
    children = [context.Process(target=_child, args=(job, sender)) for _, sender in pipes]
    for child in children:
        child.start()
    found = [receiver.recv() for receiver, _ in pipes]
    for child in children:
        child.join()
    errors = [text for text, _ in found if text]
    if errors:
        raise RuntimeError(errors[0])
    return [value for _, value in found]


def _child(job: Callable[[], Any], sender: Any) -> None:
    try:
        sender.send(("", job()))
    except BaseException as error:
        sender.send((f"a job ended with {type(error).__name__}: {error}", None))
        raise
    finally:
        sender.close()

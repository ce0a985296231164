"""The record of one case: what a program sees of its loader, in order, as JSON events.

Compared events: batches, random streams, exceptions, facts. Notes (event ``note``) are kept for people and for the
check that stoker really served the loader; they are never compared.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from .describe import describe, digest

NOTE = "note"
BATCH = "batch"


class Transcript:
    """Events of one case, in the order in which the program saw them."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    def event(self, name: str, payload: object) -> None:
        """Records a fact under a name."""
        self.events.append((name, describe(payload)))

    def note(self, payload: object) -> None:
        """Records something that may differ."""
        self.events.append((NOTE, describe(payload)))

    def batch(self, batch: object) -> None:
        """Records a batch in full."""
        self.events.append((BATCH, describe(batch)))

    def rng(self, where: str, *generators: torch.Generator) -> None:
        """Records the three main streams, and the given generators."""
        self.events.append((f"rng {where}", rng_state(*generators)))

    def raised(self, error: BaseException) -> None:
        """Records an exception: its type and first line; which worker it came from is not part of the contract.

        The traceback is dropped: torch's ``ExceptionWrapper.reraise`` makes a cycle of it that holds the iterator, and
        an iterator with workers that the cycle collector ends waits 5 s for each (its pipes are closed before it).
        """
        error.__traceback__ = None
        lines = str(error).splitlines() or [""]
        first = re.sub(r"worker process \d+", "worker process N", lines[0])
        first = re.sub(r"0x[0-9a-f]+", "0x", first)
        self.event("raised", [type(error).__module__, type(error).__qualname__, first])

    def attempt(self, action: Callable[[], object]) -> Any:
        """The action's result; an exception is recorded and gives None. A result is not recorded."""
        try:
            return action()
        except Exception as error:
            self.raised(error)
            return None

    def length(self, sized: Any) -> None:
        """Records ``len()`` of a loader or iterator, or the exception that it raises."""
        try:
            self.event("len", len(sized))
        except Exception as error:
            self.raised(error)

    def open(self, loader: Any, *generators: torch.Generator) -> Iterator[Any]:
        """``iter(loader)``, with the streams after it, and a note on who serves."""
        self.length(loader)
        iterator = iter(loader)
        self.served(iterator, loader)
        self.rng("iter", *generators)
        return iterator

    def served(self, iterator: object, loader: Any) -> None:
        """Notes whose iterator it is, and for how many declared workers."""
        kind = type(iterator)
        self.note({"iterator": f"{kind.__module__}.{kind.__qualname__}", "workers": getattr(loader, "num_workers", -1)})

    def take(self, iterator: Iterator[Any], *generators: torch.Generator, stop: int = -1, draw: bool = False) -> int:
        """Takes batches until ``stop`` or the end, streams after each; ``draw`` makes the loop draw, as dropout does.

        Returns how many batches came. Stops at the first exception, recorded.
        """
        count = 0
        while count != stop:
            try:
                batch = next(iterator)
            except StopIteration:
                self.rng("end", *generators)
                break
            except Exception as error:
                self.raised(error)
                break
            count += 1
            self.batch(batch)
            self.rng(f"batch {count}", *generators)
            if draw:
                self.event("loop", [torch.rand(2), random.random(), float(np.random.rand())])
        self.event("count", count)
        return count

    def epoch(self, loader: Any, *generators: torch.Generator, stop: int = -1, draw: bool = False) -> None:
        """One epoch (or its first ``stop`` batches) with everything recorded."""
        try:
            iterator = self.open(loader, *generators)
        except Exception as error:
            self.raised(error)
            self.rng("iter failed", *generators)
            return
        self.take(iterator, *generators, stop=stop, draw=draw)

    def epochs(self, loader: Any, *generators: torch.Generator, num: int = 2, draw: bool = False) -> None:
        """Several epochs of one loader."""
        for number in range(num):
            self.event("epoch", number)
            self.epoch(loader, *generators, draw=draw)


def rng_state(*generators: torch.Generator) -> dict[str, Any]:
    """Digests of the main streams and of the given generators."""
    name, keys, *rest = np.random.get_state(legacy=True)
    out: dict[str, Any] = {
        "torch": digest(torch.get_rng_state().numpy().tobytes()),
        "random": digest(repr(random.getstate()).encode()),
        "numpy": digest(repr((name, rest)).encode() + np.asarray(keys).tobytes()),
    }
    if generators:
        out["generators"] = [digest(g.get_state().numpy().tobytes()) for g in generators]
    return out

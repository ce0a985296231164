"""`stoker run --replay LOADER:INDEX:SEED`: makes one sample of a run again, alone, in the training process, and ends.

For samples that end their data worker: here a debugger sees it, and the interpreter's own fault handler says where it
was. Loaders before the one that is meant are served as ever, so that the program gets to it.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, NoReturn, cast

import numpy as np
import torch
from torch.utils.data import DataLoader

from stoker.core.units import format_bytes, format_seconds
from stoker.feed import fetch, streams
from stoker.feed.loader.loader_feed import LoaderFeed
from stoker.feed.order.sampling import Cursor
from stoker.feed.program import Program
from stoker.feed.replay import Replay
from stoker.feed.shell.quarantine import path_of
from stoker.feed.transport.pack import digest
from stoker.run.hard_exit import end_program
from stoker.run.loaders import patch
from stoker.run.loaders.serving import Serving, call_site
from stoker.run.run_context import Active

_MAX_LINES = 40
"""Lines about one sample."""
_MAX_TEXT = 60
"""Characters shown of a plain value."""


class Replayer(Serving):
    """Serves loaders until the one that is meant is iterated."""

    def __init__(self, active: Active) -> None:
        super().__init__(active.settings, [], active.program, active.launcher)
        self._replay = Replay.parse(active.settings.faults.replay or "")
        self._reached = False

    def start(self) -> None:
        """Waits for the loader from now on."""
        patch.install(self)
        atexit.register(self.finish)

    def iterate(self, loader: DataLoader[Any], stock: Callable[[], Any], cursor: Cursor | None = None) -> Any:
        """The iterator of a loader before the one that is meant; at that one, the end of the process."""
        if self._reached or not self._owner.is_here:
            return stock()
        if self.feed_for(loader).number != self._replay.loader:
            return super().iterate(loader, stock, cursor)
        self._reached = True
        if self.place.rank:
            end_program(0)
        self._make(loader, self.sites.get(loader) or call_site(3))

    def finish(self) -> None:
        """Reports, at the program's end, that it never reached the loader."""
        if self._reached or not self._owner.is_here:
            return
        patch.remove()
        self.close()
        if not self._count and "torch.distributed.launcher" in sys.modules:
            return  # torchrun itself: its ranks create the loaders
        _say(
            f"stoker: `--replay` names loader {self._replay.loader}, but the program used {self._count} (from 0); "
            "nothing made"
        )

    def _make(self, loader: DataLoader[Any], site: str) -> NoReturn:
        index, seed = self._replay.index, self._replay.seed
        path = path_of(loader.dataset, index)
        _say(
            f"stoker: sample {index!r}{f' ({path})' if path else ''} of loader {self._replay.loader} ({site}, "
            f"{type(loader.dataset).__name__}), seed {seed}, made in process {os.getpid()}"
        )
        faulthandler.enable()
        faulthandler.dump_traceback_later(self.config.faults.stall_timeout_s, repeat=True)
        begun = time.monotonic()
        try:
            made = make_sample(LoaderFeed.program_of(loader), index, seed)
        except BaseException:  # Ctrl-C in a sample that hangs shows where it hangs
            traceback.print_exc()
            end_program(1)
        _say(f"  made in {format_seconds(time.monotonic() - begun)}, and this process is still alive")
        for line in describe(made):
            _say(f"  {line}")
        end_program(0)


def make_sample(program: Program, index: Any, seed: int) -> Any:
    """The sample as an elastic data worker makes it, in this process."""
    fetch.announce_worker(program, 0, seed)
    if program.worker_init_fn is not None and program.declared_workers > 0:
        program.worker_init_fn(0)
    streams.seed(seed)
    if program.auto_collation and fetch.takes_whole_batches(program.dataset):
        return program.dataset.__getitems__([index])[0]
    return program.dataset[index]


def describe(sample: Any) -> list[str]:
    """Types, shapes and a digest of a sample, one line each."""
    lines: list[str] = []
    _describe(lines, "sample", sample)
    if len(lines) > _MAX_LINES:
        lines = [*lines[:_MAX_LINES], f"and {len(lines) - _MAX_LINES} more values"]
    try:
        lines.append(f"digest {digest(sample).hex()}")
    except Exception as error:  # pickling runs the code of its class, which may raise anything
        lines.append(f"no digest: it can't be pickled ({type(error).__name__}: {error})")
    return lines


def _describe(lines: list[str], name: str, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        lines.append(f"{name}: tensor {value.dtype} {list(value.shape)}, {format_bytes(value.nbytes)}{_range(value)}")
    elif isinstance(value, np.ndarray):
        array = cast("np.ndarray[Any, Any]", value)
        lines.append(f"{name}: array {array.dtype} {list(array.shape)}, {format_bytes(array.nbytes)}")
    elif isinstance(value, dict):
        for key, part in cast("dict[Any, Any]", value).items():
            _describe(lines, f"{name}[{key!r}]", part)
    elif isinstance(value, list | tuple):
        for number, part in enumerate(cast("list[Any]", value)):
            _describe(lines, f"{name}[{number}]", part)
    else:
        text = repr(value)
        text = text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 3] + "..."
        lines.append(f"{name}: {type(value).__name__} {text}")


def _range(tensor: torch.Tensor) -> str:
    try:
        return f", {tensor.min().item():g} to {tensor.max().item():g}" if tensor.numel() else ""
    except (RuntimeError, ValueError, TypeError):  # no order (complex numbers, sparse layouts)
        return ""


def _say(text: str) -> None:
    try:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        return

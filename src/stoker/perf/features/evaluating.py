# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
"""A traced program after its step, up to the end of its first pass without gradients.

Going on is worth little where it is not certain to be harmless, since numbers are not computed: it ends before the
program writes, moves or deletes a file, starts a process or connects to another one, and after some seconds.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

_LIMIT_S = 20.0
"""Time that the way to an evaluation may take, and the evaluation itself (assumed: what a person waits for)."""
_BATCHES = 2
"""Batches of each loader: what one of them keeps is alive during the second."""
_LEAVES_TRACES = frozenset((
    "os.remove", "os.rename", "os.rmdir", "os.truncate", "os.link", "os.symlink", "os.mkdir", "os.system", "os.exec",
    "os.posix_spawn", "os.fork", "subprocess.Popen", "socket.connect", "shutil.rmtree", "shutil.move",
    "shutil.copyfile", "sqlite3.connect",
))  # fmt: skip
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class EvaluationFollower:
    """Lets a program go on, and says when its evaluation begins and when enough of it was seen.

    Args:
        begun: called when the first pass without gradients begins.
        ended: called when it has ended, or the program did what a trace must not do; does not return.
    """

    def __init__(self, begun: Callable[[], None], ended: Callable[[], None]) -> None:
        self._begun, self._ended = begun, ended
        self._until_s = 0.0
        self.is_evaluating = self._is_watching = False
        self._depth = 0
        self._given: dict[int, tuple[Any, int]] = {}
        """Batches by iterator, which is kept so that its identity stays its own."""

    def watch(self) -> None:
        """Follows the program from here on."""
        self._is_watching, self._until_s = True, time.monotonic() + _LIMIT_S
        sys.addaudithook(self._audit)
        sys.dont_write_bytecode = True
        # What the program says of numbers that were not computed is not shown.
        silent = os.open(os.devnull, os.O_WRONLY)
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        # A program that calls no module for long, such as one that sleeps.
        last = threading.Timer(2 * _LIMIT_S, os._exit, (0,))
        last.daemon = True
        last.start()

    @contextmanager
    def hooks(self) -> Generator[None]:
        """Sees calls of modules in the block; before :meth:`watch` nothing follows from them."""
        registry: Any = importlib.import_module("torch.nn.modules.module")
        handles = [
            registry.register_module_forward_pre_hook(self._enter),
            registry.register_module_forward_hook(self._leave, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def may_load(self, iterator: Any) -> bool:
        """Whether a loader gives one more batch: none that the training step was loaded from, so that it ends."""
        _, given = self._given.get(id(iterator), (iterator, 0))
        self._given[id(iterator)] = iterator, given + 1
        return given < _BATCHES

    def known(self, iterator: Any) -> None:
        """An iterator that was begun before the evaluation."""
        self._given[id(iterator)] = iterator, _BATCHES

    def _enter(self, module: nn.Module, args: Any) -> None:
        del args
        self._depth += 1
        if self._depth > 1 or not self._is_watching:
            return
        learns = torch.is_grad_enabled()
        if time.monotonic() > self._until_s or (self.is_evaluating and learns):
            self._ended()
        if not self.is_evaluating and not learns and next(module.parameters(), None) is not None:
            self.is_evaluating = True
            self._begun()

    def _leave(self, module: nn.Module, args: Any, out: Any) -> None:
        del module, args, out
        self._depth = max(0, self._depth - 1)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _LEAVES_TRACES or (event == "open" and _is_written(*arguments[:3])):
            self._ended()


def _is_written(path: Any, mode: Any, flags: Any) -> bool:
    writes = bool(flags & _WRITES) if isinstance(flags, int) else False
    if isinstance(mode, str):
        writes |= any(letter in mode for letter in "wax+")
    if not writes:
        return False
    return not (isinstance(path, int) or str(path).startswith(("/dev/", "/proc/")))

"""Notices, in a rank, that its unmodified program has saved a checkpoint that it can continue from.

All of torch.save, Lightning, HF Trainer, accelerate and torch.distributed.checkpoint come to ``torch.save``. A save is
part of a checkpoint if it holds the state of an optimizer, which nobody saves for anything else, or if
``torch.distributed.checkpoint`` makes it. What a checkpoint is made of differs (a file, a folder of files, a temporary
name that is renamed), so its end is seen in the program instead: it is complete once an optimizer has made a step after
the last save. That step exchanged gradients with every rank, so all ranks have returned from their parts, too. Saves of
another thread (asynchronous ones) go on during steps: there the last must be some seconds old as well.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from stoker.core.mishaps import reraise_from_handler
from stoker.core.patching import Patches
from stoker.records import events
from stoker.run.elastic.told import RankSizes

SETTLE_S = 5.0
"""A save of another thread is complete if none has followed it for so long."""
_DISTRIBUTED = "torch.distributed.checkpoint"
_DEPTH, _WIDTH = 3, 256
"""How deep the state of an optimizer may lie in what is saved, and how many values of each level are looked at."""


class CheckpointWatch:
    """Watches saves, loads and steps of this process; tells of them by events.

    Args:
        sizes: of the program.
        emit: takes the events.
        now_s: seconds of the run.
        limit: told the most data workers of a loader, when that changes.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        sizes: RankSizes,
        emit: Callable[[events.AnyEvent], None],
        now_s: Callable[[], float],
        limit: Callable[[int], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._sizes, self._emit, self._now_s, self._limit, self._clock = sizes, emit, now_s, limit, clock
        self._patches = Patches("checkpoints are noticed")
        self._hook: Any = None
        self._lock = threading.Lock()
        self._steps = self._open = 0
        self._resumed = False
        self._pending: _Save | None = None
        self._limited: int | None = None

    def install(self) -> None:
        """Watches from now on."""
        stock_save, stock_load = torch.save, torch.load

        @functools.wraps(stock_save)
        def save(*args: Any, **kwargs: Any) -> Any:
            of = self.saving(args[0] if args else kwargs.get("obj"), args[1] if len(args) > 1 else kwargs.get("f"))
            try:
                found = stock_save(*args, **kwargs)
            except BaseException:
                self.saved(of, failed=True)
                raise
            self.saved(of)
            return found

        @functools.wraps(stock_load)
        def load(*args: Any, **kwargs: Any) -> Any:
            found = stock_load(*args, **kwargs)
            self.loaded(found)
            return found

        self._patches.set(torch, "save", save)
        self._patches.set(torch, "load", load)
        self._hook = register_optimizer_step_post_hook(self._stepped_safely)

    def remove(self) -> None:
        """Watches no more."""
        self._patches.restore()
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def saving(self, what: object, file: object) -> _Save | None:
        """A save begins; None for one that is part of no checkpoint."""
        try:
            if not (_is_distributed(2) or holds_optimizer(what)):
                return None
            path = _path_of(file)
        except Exception as error:  # of an object of the program's
            reraise_from_handler(error)
            return None
        with self._lock:
            self._open += 1
            begun = self._pending.begun_at if self._pending is not None else self._steps
        return _Save(path, begun, threading.get_ident())

    def saved(self, save: _Save | None, *, failed: bool = False) -> None:
        """It has ended."""
        if save is None:
            return
        with self._lock:
            self._open -= 1
            if not failed:
                save.ended_s = self._clock()
                self._pending = save

    def loaded(self, found: object) -> None:
        """Something was loaded: a checkpoint, if it is before the first step."""
        if self._steps or self._resumed:
            return
        try:
            self._resumed = _is_distributed(2) or holds_optimizer(found)
        except Exception as error:  # as above
            reraise_from_handler(error)

    def stepped(self, optimizer: Any) -> None:
        """An optimizer has made a step."""
        self._steps += 1
        if self._steps == 1:
            sizes = self._sizes
            started = events.TrainingStarted(
                t_s=self._now_s(), resumed=self._resumed, gradient_bytes=_gradient_bytes(optimizer)
            )
            self._emit(started)
            chosen = events.SizesChosen(
                t_s=self._now_s(), workers=sizes.workers, reason=sizes.reason, changes=sizes.changes
            )
            self._emit(chosen)
        save = self._pending
        if save is not None and not self._open and self._is_settled(save):
            self._pending = None
            since = self._steps - save.begun_at
            self._emit(events.CheckpointSaved(t_s=self._now_s(), path=save.path, steps_since=since))

    def _is_settled(self, save: _Save) -> bool:
        return save.thread == threading.get_ident() or self._clock() - save.ended_s >= SETTLE_S

    def _stepped_safely(self, optimizer: Any, *_: object) -> None:
        """Runs inside of the program's own call of ``step``: an internal error must not end that."""
        try:
            self.stepped(optimizer)
        except Exception as error:
            reraise_from_handler(error)
            self.remove()

    def on_event(self, event: events.AnyEvent) -> None:
        """With the counters, about once a second: reads a limit that was set meanwhile."""
        if isinstance(event, events.Progress):
            try:
                limit = int(Path(self._sizes.limit).read_bytes())
            except (OSError, ValueError):
                return
            if limit != self._limited:
                self._limited = limit
                self._limit(limit)


class _Save:
    """A save of part of a checkpoint."""

    def __init__(self, path: str, begun_at: int, thread: int) -> None:
        self.path, self.begun_at, self.thread = path, begun_at, thread
        self.ended_s = 0.0


def holds_optimizer(what: object, depth: int = _DEPTH) -> bool:
    """Whether the state of an optimizer, as its ``state_dict`` gives it, is among what is saved."""
    if isinstance(what, Mapping):
        known = cast("Mapping[object, object]", what)
        if "state" in known and "param_groups" in known:
            return True
        inner = list(known.values())[:_WIDTH]
    elif isinstance(what, list | tuple):
        inner = list(cast("list[object]", what)[:_WIDTH])
    else:
        return False
    return depth > 0 and any(holds_optimizer(each, depth - 1) for each in inner)


def _path_of(file: object) -> str:
    """Absolute path of what a save writes to; empty where that has no name."""
    is_path = isinstance(file, str | os.PathLike)
    name = cast("object", file) if is_path else getattr(file, "name", "")
    known = isinstance(name, str | os.PathLike) and name != ""
    return os.path.abspath(os.fsdecode(cast("str", name))) if known else ""


def _is_distributed(depth: int) -> bool:
    """Whether the caller of the replaced function is ``torch.distributed.checkpoint``."""
    frame = sys._getframe(depth + 1)  # pyright: ignore[reportPrivateUsage]
    return str(frame.f_globals.get("__name__", "")).startswith(_DISTRIBUTED)


def _gradient_bytes(optimizer: Any) -> int:
    parameters = [each for group in optimizer.param_groups for each in group["params"] if each.requires_grad]
    return sum(each.numel() * each.element_size() for each in parameters)

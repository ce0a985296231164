"""All observed steps of a thread: one mode serves every loader, each with its own recording and cut.

A step belongs to a batch and begins at the first call that touches it. Frameworks prefetch (one batch, or as many as
they accumulate), so several steps may be pending. Recording learns how many requests precede the begin of a step. After
that, a step that should have begun counts as over, and the mode leaves only if none can begin soon. While a loader
works inside ``next`` the mode is off: calls of torch and stoker there belong to no step.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass

from stoker.graph.torch_private import unseen
from stoker.graph.watching.modes import CallWatch, Step

MAX_WAITING = 16
"""Batches of one loader that may wait, unused, before the oldest is no longer watched for."""

End = Callable[[bool], None]
"""Called when nothing more is seen of a step; True if compiled code cut it short."""


@dataclass(slots=True, eq=False)
class _Live:
    owner: object
    step: Step
    end: End
    learns: bool
    asks: int = 0
    """Requests for further batches before it began."""


@dataclass(slots=True)
class _Ahead:
    """Requests for further batches before a step begins, over the recorded steps."""

    least: int
    most: int


class Conductor(threading.local):
    """Matches steps with their ends, per thread, since modes belong to a thread."""

    def __init__(self) -> None:
        self._watch = CallWatch(self._leaving, self._may_leave)
        self._live: list[_Live] = []
        self._paused = False
        self._ahead: weakref.WeakKeyDictionary[object, _Ahead] = weakref.WeakKeyDictionary()

    def begin(self, owner: object, step: Step, end: End, *, learns: bool = False) -> None:
        """Watches for a step from now on; with ``learns``, how far its program fetches ahead is taken from it."""
        waiting = [live for live in self._live if live.owner is owner]
        if len(waiting) >= MAX_WAITING:
            self._end(waiting[:1], compiled=False)
        self._live.append(_Live(owner, step, end, learns))
        self._show()

    def asked(self, owner: object) -> bool:
        """Called when the program requests a batch: ends the steps that have begun, and those that should have.

        Nothing is observed until :meth:`begin` or :meth:`resume`, one of which must follow.

        Returns:
            Whether any step is pending after that.
        """
        if not self._live:
            self._watch.rest()
            return False
        ahead = self._ahead.get(owner)
        over: list[_Live] = []
        for live in self._live:
            if live.owner is owner:
                live.asks += not live.step.began
                late = live.step.dropped if live.learns else live.asks > (ahead.most if ahead is not None else 0)
                if live.step.began or late:
                    over.append(live)
        if over:
            self._end(over, compiled=False)
        self._watch.set_steps([])
        self._paused = True
        return bool(self._live) or self._watch.active

    def resume(self) -> None:
        """The program continues: pending steps are observed again."""
        if self._paused:
            self._show()

    def left(self, owner: object) -> None:
        """Ends the owner's loop, and all its steps."""
        over = [live for live in self._live if live.owner is owner]
        if over:
            self._end(over, compiled=False)
            if not self._paused:
                self._show()

    def close(self) -> None:
        """Ends everything."""
        self._end(list(self._live), compiled=False)
        self._show()

    @property
    def watching(self) -> bool:
        """Whether the mode is on a stack."""
        return self._watch.active

    def _may_leave(self) -> bool:
        """Whether no pending step can begin before the next request to its loader."""
        for live in self._live:
            if not live.step.began:
                ahead = self._ahead.get(live.owner)
                if live.learns or ahead is None or live.asks >= ahead.least:
                    return False
        return True

    def _leaving(self, compiled: bool) -> None:
        self._end([live for live in self._live if live.step.began], compiled=compiled)

    def _end(self, over: list[_Live], *, compiled: bool) -> None:
        self._live = [live for live in self._live if live not in over]
        with unseen():  # code that ends a step looks at tensors too
            for live in over:
                if live.learns and live.step.began:
                    self._learn(live)
                live.end(compiled)

    def _learn(self, live: _Live) -> None:
        known = self._ahead.setdefault(live.owner, _Ahead(live.asks, live.asks))
        known.least, known.most = min(known.least, live.asks), max(known.most, live.asks)

    def _show(self) -> None:
        self._paused = False
        self._watch.set_steps([live.step for live in self._live])

# pyright: reportPrivateUsage=false
"""All steps that are watched in this process: one mode serves every loader, each with its own recording and cut."""

from __future__ import annotations

from collections.abc import Callable

import torch

from stoker.graph.modes import Step, Watch

MAX_WAITING = 16
"""Batches of one loader that may wait, undelivered to the model, before the oldest is no longer watched for."""

End = Callable[[bool], None]
"""Told that nothing more is seen of a step; True when compiled code cut it short."""


class Conductor:
    """Brings steps and their ends together.

    A step belongs to a batch. It begins at the first call that touches the batch, so several may wait (frameworks
    fetch ahead); it ends when its loader is asked for the next batch after that, or at a safe point once it is done.
    """

    def __init__(self) -> None:
        self._watch = Watch(self._leaving)
        self._live: list[tuple[object, Step, End]] = []

    def begin(self, owner: object, step: Step, end: End) -> None:
        """Watches for a step from now on."""
        waiting = [entry for entry in self._live if entry[0] is owner]
        if len(waiting) >= MAX_WAITING:
            self._end(waiting[:1], compiled=False)
        self._live.append((owner, step, end))
        self._show()

    def end(self, owner: object, *, waiting: bool = False) -> None:
        """Ends the steps of an owner that have begun; with ``waiting`` the others too."""
        over = [entry for entry in self._live if entry[0] is owner and (waiting or entry[1].began)]
        if over:
            self._end(over, compiled=False)
            self._show()

    def close(self) -> None:
        """Ends everything."""
        self._end(list(self._live), compiled=False)
        self._show()

    @property
    def watching(self) -> bool:
        """Whether the mode is on a stack."""
        return self._watch.active

    def _leaving(self, compiled: bool) -> None:
        self._end([entry for entry in self._live if entry[1].began], compiled=compiled)

    def _end(self, over: list[tuple[object, Step, End]], *, compiled: bool) -> None:
        self._live = [entry for entry in self._live if entry not in over]
        with torch._C.DisableTorchFunction():  # what ends a step looks at tensors too
            for _, _, end in over:
                end(compiled)

    def _show(self) -> None:
        self._watch.set_steps([step for _, step, _ in self._live])

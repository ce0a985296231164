"""What a forked child must not keep: our ends of the workers' sockets.

A worker notices the training process's death by the end of its socket, so no other process may hold a copy of our
end: neither a template of another loader nor a child that the program forks itself. Programs that ``exec`` drop them
anyway (all descriptors are close-on-exec).
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Abandonable(Protocol):
    """Something with descriptors that only the process that made it may hold."""

    def abandon(self) -> None:
        """Closes the descriptors in a forked child; the parent's stay as they are."""
        ...


_registered: weakref.WeakSet[Abandonable] = weakref.WeakSet()


def abandon_in_children(thing: Abandonable) -> None:
    """From now on forked children abandon ``thing`` as their first act."""
    _registered.add(thing)


def _in_child() -> None:
    for thing in list(_registered):
        thing.abandon()
    _registered.clear()


os.register_at_fork(after_in_child=_in_child)

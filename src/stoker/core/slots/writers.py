"""Cursors of a process that fills slots, or separate memory where there is none."""

from __future__ import annotations

import os

import numpy as np
import numpy.typing as npt

from stoker.core.slots.ring import ALIGN, Mapping, align, create_memory

_FRESH_BYTES = 1 << 16
"""A buffer smaller than this is no reason to create a memfd for its batch."""
_FRESH_FACTOR = 4
"""A new memfd is this many times as large as its first buffer: others follow, and unwritten pages cost nothing."""


class SlotWriter:
    """A worker's cursor in one slot: hands out aligned regions and knows which addresses lie inside.

    Also serves as the arena into which ``default_collate`` stacks, so that most batches are never copied.
    """

    def __init__(self, view: npt.NDArray[np.uint8]) -> None:
        self.view = view
        self.address = int(view.ctypes.data)
        self.size_bytes = len(view)
        self.used_bytes = 0

    def reserve(self, size_bytes: int, phase: int = 0) -> int | None:
        """Offset of a free region whose address is ``phase`` modulo ``ALIGN``; None when it does not fit."""
        start = align(self.used_bytes) + phase % ALIGN
        if start + size_bytes > self.size_bytes:
            return None
        self.used_bytes = start + size_bytes
        return start

    def offset_of(self, address: int, size_bytes: int) -> int | None:
        """Offset of a memory range in the slot; None when it is elsewhere."""
        offset = address - self.address
        return offset if offset >= 0 and offset + size_bytes <= self.used_bytes else None


class FreshWriter(SlotWriter):
    """A worker's cursor in a separate memfd, created once the first large buffer needs room.

    For a batch that has no slot: it is built there as it would be in a slot, and never copied either.

    Args:
        size_bytes: creates the memfd at once, of this size.

    Raises:
        OSError: no memory or no descriptor left, when created at once.
    """

    def __init__(self, size_bytes: int = 0) -> None:
        super().__init__(np.empty(0, np.uint8))
        self._fd = -1
        if size_bytes:
            self._create(size_bytes)

    def reserve(self, size_bytes: int, phase: int = 0) -> int | None:
        """As in a slot; None also for small buffers before the memfd exists, and if it can't be created."""
        if self._fd < 0:
            if size_bytes < _FRESH_BYTES:
                return None
            try:
                self._create(_FRESH_FACTOR * size_bytes)
            except OSError:
                return None
        return super().reserve(size_bytes, phase)

    def _create(self, size_bytes: int) -> None:
        fd = create_memory("stoker-batch", size_bytes)
        try:
            view = Mapping(fd, size_bytes).view(0, size_bytes)
        except (OSError, ValueError) as error:
            os.close(fd)
            raise OSError(str(error)) from error
        super().__init__(view)
        self._fd = fd

    def take(self) -> int:
        """The descriptor of the memfd, truncated to what is used; the caller closes it."""
        os.ftruncate(self._fd, max(self.used_bytes, 1))
        fd, self._fd = self._fd, -1
        return fd

    def close(self) -> None:
        """Closes the memfd, if it was not taken."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

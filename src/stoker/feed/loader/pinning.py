"""Pinned host memory for ``pin_memory=True``: a thread copies batches one step ahead, as in torch.

They are copies, not registered slots: torch's host allocator would not know when an asynchronous copy out of a slot
has finished, so a slot could be overwritten during the copy.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from stoker.feed.torch_private import pinning


class Pinner:
    """Copies to pinned memory for one iterator.

    Args:
        device: type of the accelerator, as torch's iterator knows it.
    """

    def __init__(self, device: Any) -> None:
        self._device = device
        self._index = torch.accelerator.current_device_index()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="stoker-pin", initializer=self._init)
        self._submitted: tuple[Future[Any], Callable[[], None]] | None = None
        """The batch to come, and what frees what it is built from."""

    def _init(self) -> None:
        torch.accelerator.set_device_index(self._index)

    def pin(self, batch: Any) -> Any:
        """Copies the batch to pinned memory now."""
        return pinning.pin_memory(batch, self._device)

    def submit(self, build: Callable[[], Any], drop: Callable[[], None]) -> None:
        """Has the next batch built and pinned in the thread.

        Args:
            build: makes the batch.
            drop: frees what it would have been built from; called if the batch is forgotten before the thread has
                begun.
        """
        self._submitted = self._thread.submit(lambda: self.pin(build())), drop

    def result(self) -> Any:
        """The submitted batch; raises what building it raised."""
        assert self._submitted is not None
        (future, _), self._submitted = self._submitted, None
        return future.result()

    def forget(self) -> None:
        """Drops the submitted batch, if there is one."""
        submitted, self._submitted = self._submitted, None
        if submitted is not None and submitted[0].cancel():
            submitted[1]()

    def close(self) -> None:
        """Ends the thread."""
        self.forget()
        self._thread.shutdown(wait=False)

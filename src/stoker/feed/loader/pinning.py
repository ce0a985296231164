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
        self._future: Future[Any] | None = None

    def _init(self) -> None:
        torch.accelerator.set_device_index(self._index)

    def pin(self, batch: Any) -> Any:
        """Copies the batch to pinned memory now."""
        return pinning.pin_memory(batch, self._device)

    def submit(self, build: Callable[[], Any]) -> None:
        """Has the next batch built and pinned in the thread."""
        self._future = self._thread.submit(lambda: self.pin(build()))

    def result(self) -> Any:
        """The submitted batch; raises what building it raised."""
        assert self._future is not None
        future, self._future = self._future, None
        return future.result()

    def forget(self) -> None:
        """Drops the submitted batch."""
        self._future = None

    def close(self) -> None:
        """Ends the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

# pyright: reportUnknownMemberType=false
"""Tensors of a device that lie in host memory for a while: copied there and back on separate streams.

On CUDA, host memory is pinned, and each direction has a stream, so that copies overlap with compute. Without a device
the path is the same: a copy is made at once, out of sight of what counts bytes and of what traces. So memory of an
emulated device is that of tensors which operations of the program see, and what is away is none of it.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from stoker.train.torch_private import without_modes


class _Link(Protocol):
    """What carries bytes between a device and its host."""

    def out(self, tensor: Tensor, host: Tensor | None) -> tuple[Tensor, Any]:
        """Begins a copy to host memory, which is made if there is none; returns it, and when the copy is over."""
        ...

    def back(self, host: Tensor, into: Tensor, after: Any) -> Any:
        """Begins a copy to the device once ``after`` is over; returns when it is over itself."""
        ...

    def wait(self, event: Any) -> None:
        """Lets the device's compute wait."""
        ...


class _Emulated:
    """Copies at once, which no mode sees."""

    def out(self, tensor: Tensor, host: Tensor | None) -> tuple[Tensor, Any]:
        with torch.no_grad(), without_modes():
            return (tensor.detach().clone() if host is None else host.copy_(tensor)), None

    def back(self, host: Tensor, into: Tensor, after: Any) -> Any:
        with torch.no_grad(), without_modes():
            into.copy_(host)

    def wait(self, event: Any) -> None:
        pass


class _Streams:
    """Copies of one GPU on two streams.

    Args:
        device: the GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._out, self._back = torch.cuda.Stream(device), torch.cuda.Stream(device)

    def out(self, tensor: Tensor, host: Tensor | None) -> tuple[Tensor, Any]:
        if host is None:
            host = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, pin_memory=True)
        return host, self._on(self._out, host, tensor)

    def back(self, host: Tensor, into: Tensor, after: Any) -> Any:
        self._back.wait_event(after)
        return self._on(self._back, into, host)

    def _on(self, stream: Any, into: Tensor, source: Tensor) -> Any:
        # Compute may still write the source, or use what lay in the memory of the target before.
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.no_grad(), torch.cuda.stream(stream):
            into.copy_(source, non_blocking=True)
            return stream.record_event()

    def wait(self, event: Any) -> None:
        torch.cuda.current_stream(self._device).wait_event(event)


_emulated = _Emulated()
_streams: dict[torch.device, _Streams] = {}


def _link_of(device: torch.device) -> _Link:
    if device.type != "cuda":
        return _emulated
    if device not in _streams:
        _streams[device] = _Streams(device)
    return _streams[device]


class HostCopy:
    """A tensor whose memory may be given up, since it lies in host memory as well.

    Args:
        tensor: on the device; its copy begins now. It must cover memory without gaps.
    """

    def __init__(self, tensor: Tensor) -> None:
        self._link = _link_of(tensor.device)
        self._tensor: Tensor | None = tensor
        self._event: Any = None
        """When the copy back is over."""
        self._place = tensor.detach().new_empty(0)
        """Makes memory where the tensor lies; it takes none itself."""
        self.host, self._gone = self._link.out(tensor, None)

    @property
    def is_here(self) -> bool:
        """Whether it takes memory of the device."""
        return self._tensor is not None

    def leave(self) -> None:
        """Gives up its memory of the device; what compute does from now on waits for the copy."""
        self._link.wait(self._gone)
        self._tensor = None

    def fetch(self) -> None:
        """Begins to copy it back, into memory that it takes now."""
        if self._tensor is None:
            like = self.host
            self._tensor = self._place.new_empty_strided(like.size(), like.stride())
            self._event = self._link.back(self.host, self._tensor, self._gone)

    def here(self) -> Tensor:
        """The tensor on the device, for what compute does from now on."""
        self.fetch()
        assert self._tensor is not None
        if self._event is not None:
            self._link.wait(self._event)
            self._event = None
        return self._tensor

    def update(self, tensor: Tensor) -> None:
        """Begins to copy new values of it, which are on the device in its place, to host memory."""
        self._tensor = tensor
        self.host, self._gone = self._link.out(tensor, self.host)

    def shown(self) -> Tensor:
        """The values for a program that reads them: on the device, or without one in host memory itself."""
        if self._gone is None:
            return self.host
        self._gone.synchronize()
        return self.host.to(self._place.device)

    def __del__(self) -> None:
        # Memory must not be used again while a copy into it is under way, as where a backward pass has failed.
        if self._event is not None:
            self._link.wait(self._event)

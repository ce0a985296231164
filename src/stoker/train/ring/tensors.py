"""The memory of a flat tensor, as sockets and additions want it.

NumPy adds what it knows: a call takes a microsecond, and no thread of torch's pool. Other dtypes are added by torch.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

_BY_NUMPY = {
    torch.float32: np.float32, torch.float64: np.float64, torch.int64: np.int64, torch.int32: np.int32,
    torch.int16: np.int16, torch.int8: np.int8, torch.uint8: np.uint8, torch.complex64: np.complex64,
    torch.complex128: np.complex128,
}  # fmt: skip
_BY_TORCH = (torch.float16, torch.bfloat16)


class FlatBuffer:
    """A contiguous tensor of one dimension on the CPU.

    Args:
        tensor: which is changed in place.

    Raises:
        ValueError: it is not flat, not contiguous, not on the CPU, or of a dtype without sums.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        if tensor.device.type != "cpu" or tensor.dim() != 1 or not tensor.is_contiguous():
            raise ValueError(
                f"`tensor` must be a contiguous one of 1 dimension on the CPU, got {tensor.dim()} on {tensor.device}"
            )
        if tensor.dtype not in _BY_NUMPY and tensor.dtype not in _BY_TORCH:
            raise ValueError(f"`tensor` must be of numbers that can be summed, got {tensor.dtype}")
        self.tensor = tensor.detach()
        self.num_elements = tensor.numel()
        self.element_bytes = tensor.element_size()
        self.bytes = memory_of(self.tensor)
        """All of its memory, to be read and written."""

    def part(self, start: int, end: int) -> memoryview:
        """The memory of the elements from ``start`` to ``end``."""
        return self.bytes[start * self.element_bytes : end * self.element_bytes]

    def adding(self, scratch: bytearray) -> Callable[[int, int], object]:
        """A function that adds what lies at the head of ``scratch`` to the elements from ``start`` to ``end``."""
        dtype = _BY_NUMPY.get(self.tensor.dtype)
        if dtype is None:
            ours, theirs = self.tensor, torch.frombuffer(scratch, dtype=self.tensor.dtype)
            return lambda start, end: ours[start:end].add_(theirs[: end - start])
        array = np.frombuffer(self.bytes, dtype) if self.num_elements else np.empty(0, dtype)
        other = np.frombuffer(scratch, dtype)

        def add(start: int, end: int) -> object:
            part = array[start:end]
            with np.errstate(all="ignore"):  # as torch: a gradient that overflows is the program's affair
                return np.add(part, other[: end - start], out=part)

        return add


def memory_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU, of any dtype."""
    if not tensor.numel():
        return memoryview(bytearray())
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data

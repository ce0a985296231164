"""Errors of torch's allocators: whether an exception is one, and what it says; pure."""

from __future__ import annotations

import re

from stoker.records.memory import AskedMemory

_CPU = "DefaultCPUAllocator"
"""In the RuntimeError of the CPU's allocator (c10/core/impl/alloc_cpu.cpp)."""
_SCALES = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = r"([\d.]+) (bytes|[KMGT]iB)"


def asked_of(error: BaseException | None) -> tuple[BaseException, AskedMemory] | None:
    """The error of an allocator, this one or one that it was raised from, and what it says; None if there is none.

    Only the words of torch's errors are read: ``torch.OutOfMemoryError`` of accelerators, and the RuntimeError of the
    CPU's allocator.
    """
    seen = 0
    while error is not None and seen < 8:
        names = {kind.__name__ for kind in type(error).__mro__ if kind.__module__.startswith("torch")}
        if "OutOfMemoryError" in names:
            return error, parse_asked(str(error))
        if type(error) is RuntimeError and _CPU in str(error):
            return error, parse_asked(str(error))
        error, seen = error.__cause__, seen + 1
    return None


def parse_asked(text: str) -> AskedMemory:
    """What the text of such an error says."""
    if _CPU in text:
        found = re.search(r"tried to allocate (\d+) bytes", text)
        return AskedMemory(int(found[1]) if found else None, "cpu")
    gpu = re.search(rf"GPU (\d+) has a total capacity of {_SIZE}", text)
    return AskedMemory(
        bytes=_size(re.search(rf"Tried to allocate {_SIZE}", text)),
        device=text.split(maxsplit=1)[0].lower() if " out of memory" in text else "cuda",
        index=int(gpu[1]) if gpu else None,
        capacity_bytes=_size(re.search(rf"total capacity of {_SIZE}", text)),
        idle_bytes=_size(re.search(rf"{_SIZE} is reserved by PyTorch but unallocated", text)),
    )


def _size(found: re.Match[str] | None) -> int | None:
    return int(float(found[1]) * _SCALES[found[2]]) if found else None

"""Models from a remote store: safetensors files as tensors, in parallel, and once for all processes of a host.

Tensors on the CPU are views of the cache's own file: loading them copies nothing, and processes that load the same
model share its memory until they write to it.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from typing import Any

import torch

from stoker.cache.filesystem.resolve_url import open_place, settings_in_use, url_of
from stoker.cache.filesystem.stoker_filesystem import StokerFileSystem
from stoker.cache.models.safetensors_header import (
    LENGTH_BYTES,
    SafetensorsHeader,
    TensorEntry,
    header_length,
    parse_header,
)
from stoker.cache.reading.whole_object import ROUND_BYTES, WholeObject
from stoker.cache.settings import CacheSettings
from stoker.cache.warm.preloading import list_items
from stoker.core.errors import ModelFileError
from stoker.core.progress import ProgressLine

_AHEAD_BYTES = ROUND_BYTES
"""Bytes to prefetch while earlier tensors are used."""
_SHOWN_BYTES = 64 << 20
"""Smaller loads finish before a progress bar would help."""
_STAGE_BYTES = 64 << 20
_SUFFIX = ".safetensors"

_DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32,
    "I64": torch.int64, "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64, "F16": torch.float16,
    "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64, "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
if hasattr(torch, "float8_e8m0fnu"):  # since 2.7
    _DTYPES["F8_E8M0"] = torch.float8_e8m0fnu


def load_safetensors(
    url: str,
    device: str | torch.device = "cpu",
    *,
    names: Collection[str] | None = None,
    progress: bool | None = None,
    settings: CacheSettings | None = None,
    options: dict[str, Any] | None = None,
) -> dict[str, torch.Tensor]:
    """The tensors of a safetensors file, or of all those in a folder.

    Args:
        url: ``s3://bucket/model.safetensors`` or ``s3://bucket/model``.
        device: where the tensors are to be.
        names: only these tensors; None for all.
        progress: shows a bar on standard error; None does on a terminal, for files that take a while.
        settings: of the cache; None for those that are installed, else as ``stoker config show`` has them.
        options: for the store's filesystem.

    Returns:
        Tensors by name; those on the CPU are views of a file of the cache that is mapped privately.

    Raises:
        ModelFileError: a file is not of the format, or a tensor is in none.
        SourceChangedError: a file was replaced while it was read.
    """
    tensors = dict(stream_safetensors(url, device, names=names, progress=progress, settings=settings, options=options))
    if names is not None and (lacking := sorted(set(names) - tensors.keys())):
        raise ModelFileError(f"`names` must be tensors of `{url}`, got {', '.join(lacking[:5])}", path=url)
    return tensors


def stream_safetensors(
    url: str,
    device: str | torch.device = "cpu",
    *,
    names: Collection[str] | None = None,
    progress: bool | None = None,
    settings: CacheSettings | None = None,
    options: dict[str, Any] | None = None,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the same tensors one by one in the order of the file, while the next ones are being read.

    Takes what :func:`load_safetensors` takes.
    """
    filesystem, path = open_place(url, settings or settings_in_use(), options)
    paths = _files(filesystem, path, url)
    uploader = _Uploader(torch.device(device))
    quiet = progress is False or (progress is None and not _is_terminal())
    for number, each in enumerate(paths, 1):
        label = each.rpartition("/")[2] + (f" ({number} of {len(paths)})" if len(paths) > 1 else "")
        yield from _stream(filesystem, each, uploader, names, label, quiet=quiet, always=progress is True)


def _files(filesystem: StokerFileSystem, path: str, url: str) -> list[str]:
    if path.endswith(_SUFFIX):
        return [path]
    try:
        found = [item.path for item in list_items(filesystem, path, is_pattern=False).items]
    except FileNotFoundError:
        found = []
    paths = sorted(name for name in found if name.endswith(_SUFFIX))
    if not paths:
        raise ModelFileError(f"`{url}` must be a safetensors file or a folder of some, got none", path=url)
    return paths


def _stream(
    filesystem: StokerFileSystem,
    path: str,
    uploader: _Uploader,
    names: Collection[str] | None,
    label: str,
    *,
    quiet: bool,
    always: bool,
) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of one file."""
    with ProgressLine(label, 0, sys.stderr, quiet=quiet) as line:

        def report(num_bytes: int, moved: bool) -> None:
            line.advance(num_bytes, moved=moved)

        with WholeObject(filesystem.pages, filesystem.reader, path, report) as whole:
            if whole.size < _SHOWN_BYTES and not always:
                line.close()
            if names is None:
                whole.begin(_AHEAD_BYTES)
            header = _header(whole, url_of(filesystem, path))
            wanted = [tensor for tensor in header.tensors if names is None or tensor.name in names]
            whole.plan([(tensor.start, tensor.end) for tensor in wanted])
            line.total = line.done + sum(tensor.end - tensor.start for tensor in wanted) if names else whole.size
            for tensor in wanted:
                whole.ahead(tensor.end + _AHEAD_BYTES)
                view = whole.wait(tensor.start, tensor.end)
                yield tensor.name, uploader.upload(_as_tensor(tensor, view))


def _header(whole: WholeObject, url: str) -> SafetensorsHeader:
    first = whole.wait(0, min(LENGTH_BYTES, whole.size))
    length = header_length(first, url, whole.size)
    return parse_header(whole.wait(LENGTH_BYTES, LENGTH_BYTES + length), url, whole.size)


def _as_tensor(entry: TensorEntry, view: memoryview) -> torch.Tensor:
    """A tensor over these bytes, without a copy where they are aligned as the type asks for."""
    dtype = _DTYPES.get(entry.dtype)
    if dtype is None:
        raise ModelFileError(
            f"tensor {entry.name!r} is of type {entry.dtype}, which this torch ({torch.__version__}) lacks"
        )
    if not view:
        return torch.empty(entry.shape, dtype=dtype)
    if entry.start % dtype.itemsize:
        view = memoryview(bytearray(view))
    return torch.frombuffer(view, dtype=dtype).view(entry.shape)


class _Uploader:
    """Copies tensors to a device; to a GPU through two pinned buffers, so that one is filled while the other goes."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stages: list[torch.Tensor] = []
        self._events: list[Any] = []
        self._next = 0

    def upload(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor on the device."""
        if self._device.type == "cpu":
            return tensor
        if self._device.type != "cuda" or not tensor.numel():
            return tensor.to(self._device)
        target = torch.empty(tensor.shape, dtype=tensor.dtype, device=self._device)
        source, sink = tensor.reshape(-1).view(torch.uint8), target.view(-1).view(torch.uint8)
        for start in range(0, len(source), _STAGE_BYTES):
            self._send(source[start : start + _STAGE_BYTES], sink[start : start + _STAGE_BYTES])
        return target

    def _send(self, source: torch.Tensor, sink: torch.Tensor) -> None:
        if not self._stages:
            self._stages = [torch.empty(_STAGE_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
            self._events = [torch.cuda.Event() for _ in range(2)]
        self._next = 1 - self._next
        stage, event = self._stages[self._next], self._events[self._next]
        event.synchronize()
        stage[: len(source)].copy_(source)
        sink.copy_(stage[: len(source)], non_blocking=True)
        event.record(torch.cuda.current_stream(self._device))


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):
        return False

"""Which files an ONNX model needs next to it, read from its bytes: serving needs no ``onnx`` for it.

Source: ``onnx.proto`` of ONNX 1.17, of which only the fields on the way to names of external data are read.
"""

from __future__ import annotations

import mmap
import posixpath
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from stoker.wire.protobuf import BYTES, fields

_Kind = Literal["model", "graph", "function", "node", "attribute", "sparse", "tensor"]
_INSIDE: dict[_Kind, dict[int, _Kind]] = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
"""By kind of message: fields that hold messages of another kind."""
_EXTERNAL_DATA = 13
"""Field of a tensor: pairs of a key and a value, of which ``location`` is the name of a file."""
_KEY, _VALUE = 1, 2


def external_files(path: Path) -> list[str]:
    """Names of the files with weights of a model, relative to its folder.

    Args:
        path: of the model.

    Raises:
        ValueError: it is no ONNX file, or one of the names would lead out of its folder.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        if not path.stat().st_size:
            return []
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return sorted({_inside(name) for name in _locations(data, 0, len(data), "model") if name})
            except IndexError:
                raise ValueError("it must be an ONNX file, and is not in its format") from None


def _inside(name: str) -> str:
    """A name below the model's folder in its shortest form: who made the model chose it freely."""
    short = posixpath.normpath(name)
    if name.startswith("/") or ".." in name.split("/") or short == "." or "\0" in name or "\\" in name:
        raise ValueError(f"its external data must be in files below its folder, got {name[:200]!r}")
    return short


def _locations(data: mmap.mmap, start: int, end: int, kind: _Kind) -> Iterator[str]:
    for field, wire, first, last in fields(data, start, end):
        if wire != BYTES:
            continue
        if kind == "tensor" and field == _EXTERNAL_DATA:
            pair = {each: data[begin:stop] for each, _, begin, stop in fields(data, first, last)}
            if pair.get(_KEY) == b"location":
                yield pair.get(_VALUE, b"").decode("utf-8", "surrogateescape")
        elif (inner := _INSIDE[kind].get(field)) is not None:
            yield from _locations(data, first, last, inner)

"""Writes and reads the folder of an integer model.

``graph.json`` holds values and operations, ``constants.safetensors`` the arrays, ``accuracy.json`` how it compares with
the model on real numbers, ``manifest.json`` names and digests of these, and ``digest`` the manifest's own, which stands
for the whole package. Nothing in it depends on when or where it was made.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from stoker.core.errors import PackageError
from stoker.core.extras import require
from stoker.core.texts import to_json
from stoker.deploy.ir.checking import checked
from stoker.deploy.ir.graph import IntegerGraph
from stoker.deploy.ir.operations import Operation, Softmax
from stoker.deploy.ir.values import IntegerValue, ModelPort
from stoker.records.deploy.quantisation import QuantisationRecord

FORMAT = 2
"""Number of the form of folder and arithmetic: an engine of another one might compute other numbers.

Since 2 a softmax may have ``counts``, a value ``highs`` and an input truth values, which readers of 1 pass over. What
has none of these is written as 1.
"""
_FIRST = 1
_GRAPH, _CONSTANTS, _ACCURACY, _MANIFEST, _DIGEST = (
    "graph.json", "constants.safetensors", "accuracy.json", "manifest.json", "digest",
)  # fmt: skip
_AGAIN = "make it again with `stoker deploy quantise`"


class PackageManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a package says of itself."""

    model: str
    digests: dict[str, str]
    """SHA-256 of each file, by name."""
    format: int


class _GraphFile(msgspec.Struct, frozen=True, kw_only=True):
    """The graph without its constants."""

    inputs: list[ModelPort]
    outputs: list[ModelPort]
    values: list[IntegerValue]
    operations: list[Operation]


@dataclass(frozen=True, slots=True)
class IntegerPackage:
    """A package that was read.

    Attributes:
        graph: checked.
        accuracy: as measured when it was made; None for one that was made of a graph alone.
        model: its name.
        digest: of the whole package; equal ones hold equal bytes.
    """

    graph: IntegerGraph
    accuracy: QuantisationRecord | None
    model: str
    digest: str


def write_package(path: str | Path, graph: IntegerGraph, model: str, accuracy: QuantisationRecord | None = None) -> str:
    """Writes a package, in place of one that is there; its digest.

    Args:
        path: of the folder; missing, empty, or an older package.
        graph: any; it is checked.
        model: its name.
        accuracy: how it compares.

    Raises:
        PackageError: the folder holds something else, or can't be written.
        MissingExtraError: safetensors is not installed.
    """
    save: Any = require("safetensors.numpy", extra="deploy").save
    checked(graph)
    path = Path(path)
    if path.exists() and not (path / _DIGEST).is_file() and not (path.is_dir() and not any(path.iterdir())):
        raise PackageError(f"`{path}` must be a new folder or a package, and holds something else", path=str(path))
    file = _GraphFile(
        inputs=list(graph.inputs), outputs=list(graph.outputs), values=list(graph.values.values()),
        operations=list(graph.operations),
    )  # fmt: skip
    constants = {name: np.ascontiguousarray(array) for name, array in sorted(graph.constants.items())}
    contents = {_GRAPH: msgspec.json.format(to_json(file)), _CONSTANTS: save(constants)}
    if accuracy is not None:
        contents[_ACCURACY] = msgspec.json.format(to_json(accuracy))
    digests = {name: _sha256(content) for name, content in contents.items()}
    contents[_MANIFEST] = msgspec.json.format(
        to_json(PackageManifest(model=model, digests=digests, format=_least(graph)))
    )
    digest = _sha256(contents[_MANIFEST])
    contents[_DIGEST] = f"{digest}\n".encode()
    try:
        _put(path, contents)
    except OSError as error:
        raise PackageError(
            f"`{path}` must be a folder that can be written: {error.strerror}", path=str(path)
        ) from error
    return digest


def read_package(path: str | Path) -> IntegerPackage:
    """Reads a package.

    Raises:
        PackageError: it is missing, damaged, not sound, or of another format; fields: path.
        MissingExtraError: safetensors is not installed.
    """
    load: Any = require("safetensors.numpy", extra="deploy").load
    path = Path(path)
    digest = _read(path, _DIGEST).decode("ascii", "replace").strip()
    manifest_bytes = _read(path, _MANIFEST)
    if _sha256(manifest_bytes) != digest:
        raise _damaged(path, _MANIFEST, "its digest")
    try:
        manifest = msgspec.json.decode(manifest_bytes, type=PackageManifest)
        if not _FIRST <= manifest.format <= FORMAT:
            raise PackageError(
                f"`{path}` must have format {_FIRST} to {FORMAT}, got {manifest.format}; use the stoker that made it, "
                f"or {_AGAIN}",
                path=str(path),
            )
        contents = {
            name: _read(path, name) for name in sorted(manifest.digests) if name in (_GRAPH, _CONSTANTS, _ACCURACY)
        }
        for name, content in contents.items():
            if _sha256(content) != manifest.digests[name]:
                raise _damaged(path, name, "its digest")
        file = msgspec.json.decode(contents[_GRAPH], type=_GraphFile)
        accuracy = contents.get(_ACCURACY)
        graph = IntegerGraph(
            inputs=tuple(file.inputs), outputs=tuple(file.outputs),
            values={value.name: value for value in file.values}, operations=tuple(file.operations),
            constants=load(contents[_CONSTANTS]),
        )  # fmt: skip
        return IntegerPackage(
            checked(graph),
            None if accuracy is None else msgspec.json.decode(accuracy, type=QuantisationRecord),
            manifest.model,
            digest,
        )
    except (ValueError, KeyError, IndexError, TypeError, msgspec.MsgspecError) as error:
        # Digests fit, so these bytes were written so: by another program, or a version with other rules.
        raise PackageError(f"`{path}` must hold a sound graph, and: {error}; {_AGAIN}", path=str(path)) from error


def _least(graph: IntegerGraph) -> int:
    """The first format that has all of a graph."""
    by_place = any(value.highs for value in graph.values.values())
    masked = any(isinstance(each, Softmax) and each.counts is not None for each in graph.operations)
    return FORMAT if by_place or masked or any(port.dtype == "bool" for port in graph.inputs) else _FIRST


def _put(path: Path, contents: dict[str, bytes]) -> None:
    """Writes a folder next to its place and puts it there whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    try:
        made.chmod(0o755)
        for name, content in contents.items():
            (made / name).write_bytes(content)
        old = made.with_name(f"{made.name}.old")
        if path.exists():
            os.replace(path, old)
        os.replace(made, path)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _read(path: Path, name: str) -> bytes:
    try:
        return (path / name).read_bytes()
    except OSError as error:
        raise PackageError(
            f"`{path}` must be a package of an integer model with `{name}`: {error.strerror}; {_AGAIN}", path=str(path)
        ) from error


def _damaged(path: Path, name: str, what: str) -> PackageError:
    return PackageError(
        f"`{path / name}` must have {what} as written, and is damaged; copy it again, or {_AGAIN}", path=str(path)
    )


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()

"""A program that came from another machine: its modules without files, its objects, and whether it is the same here."""

from __future__ import annotations

import importlib.abc
import importlib.metadata
import importlib.util
import os
import pickle
import sys
import types
from collections.abc import Sequence
from importlib.machinery import ModuleSpec

import msgspec

from stoker.backends.remote.admission import why_not_installed
from stoker.backends.shipping import Module, Parcel
from stoker.core.errors import WireError
from stoker.feed.program import Program


class ShippedModules(importlib.abc.MetaPathFinder):
    """Finds the user's modules in what was sent: nothing of them is written to a disk, so nothing is left there."""

    def __init__(self, modules: Sequence[Module]) -> None:
        self._modules = {module.name: module for module in modules}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module, if it was sent."""
        module = self._modules.get(fullname)
        if module is None:
            return None
        loader = _ShippedLoader(module)
        return importlib.util.spec_from_file_location(
            fullname, module.path, loader=loader, submodule_search_locations=[] if module.is_package else None
        )


class _ShippedLoader(importlib.abc.SourceLoader):
    def __init__(self, module: Module) -> None:
        self._module = module

    def get_filename(self, fullname: str) -> str:
        return self._module.path  # the program's own: its data next to it is on shared storage

    def get_data(self, path: str | bytes) -> bytes:
        if path != self._module.path:
            raise OSError(path)
        return self._module.source

    def is_package(self, fullname: str) -> bool:
        return self._module.is_package


def unpack_parcel(data: bytes) -> Parcel:
    """What was sent, unread; raises :class:`WireError`."""
    try:
        return msgspec.msgpack.decode(data, type=Parcel)
    except (msgspec.MsgspecError, ValueError) as error:
        raise WireError(f"`PROGRAM` of {len(data)} bytes is malformed: {error}") from None


def lacking(parcel: Parcel) -> str:
    """Why its packages are not those of this machine; empty if they are."""
    return why_not_installed(parcel.versions, {name: _installed(name) for name in parcel.versions})


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def load(parcel: Parcel) -> Program:
    """The program's objects; raises what importing its modules raises."""
    if os.path.isdir(parcel.folder):
        os.chdir(parcel.folder)
    sys.meta_path.insert(0, ShippedModules(parcel.modules))
    return pickle.loads(parcel.program)

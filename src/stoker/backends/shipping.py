"""Sends a program to other machines, pickled in a child of the template: just what this machine's workers have.

The child also makes one item, when it is asked to: a machine that makes the same bytes of it may serve. Records go
through a socket to the gateway, which reads none of them: a letter, a length, and the bytes.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import pickle
import socket
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import msgspec

from stoker.backends.ship_records import DIGEST, FAILED, MAKE, MAX_PROGRAM_BYTES, PROGRAM, RECORD, SAMPLE
from stoker.core.extras import require
from stoker.core.units import format_bytes
from stoker.feed.fetch import create_fetcher
from stoker.feed.program import Iteration, Program, WorkItem
from stoker.feed.purity.objects import is_library
from stoker.feed.purity.tiers import state_fingerprint
from stoker.feed.transport.pack import digest

_MOST_BESIDE = 200
"""Modules in the script's folder that are sent although they are not imported yet."""


class Module(msgspec.Struct, frozen=True):
    """The source of one of the user's modules."""

    name: str
    path: str
    is_package: bool
    source: bytes


class Parcel(msgspec.Struct, frozen=True):
    """A program, and what must be there before it is unpickled."""

    program: bytes
    modules: list[Module]
    versions: dict[str, str]
    """Versions of the installed packages that the program has imported."""
    folder: str
    """The program's working directory."""
    state: bytes
    """Fingerprint of what the program depends on outside of it: after a change there it is another program."""


def ship(program: Program, sample: bytes, fd: int) -> NoReturn:
    """Sends the program, then what it makes of the sample item, if the other side asks for it. Ends the process."""
    with contextlib.suppress(OSError), socket.socket(fileno=fd) as sock:
        sock.setblocking(True)
        try:
            parcel = pack_parcel(program)
        except Exception as error:
            _send(sock, FAILED, f"it can't be pickled ({_words(error)})".encode())
        else:
            if len(parcel) > MAX_PROGRAM_BYTES:
                size, most = format_bytes(len(parcel)), format_bytes(MAX_PROGRAM_BYTES)
                _send(sock, FAILED, f"it pickles to {size}, more than {most}; keep its data in files".encode())
            else:
                _send(sock, PROGRAM, parcel)
                _send(sock, SAMPLE, sample)
                if sock.recv(1) == MAKE:
                    _send(sock, DIGEST, made_of(program, sample))
    os._exit(0)


def made_of(program: Program, sample: bytes) -> bytes:
    """The digest of a sample item's batch, or of the error that making it raises: 16 bytes."""
    iteration, (seq, work) = read_sample(sample)
    try:
        return digest(create_fetcher(program, iteration).fetch(seq, work, _nowhere))
    except Exception as error:
        return f"raises {type(error.__cause__ or error).__name__}".encode()[:16].ljust(16)


def read_sample(sample: bytes) -> tuple[Iteration, tuple[int, WorkItem]]:
    """The iteration of a sample item, its number and the item."""
    return pickle.loads(sample)


def _nowhere(position: int) -> None:
    pass


def _send(sock: socket.socket, kind: bytes, body: bytes) -> None:
    sock.sendall(RECORD.pack(kind, len(body)))
    sock.sendall(body)


def pack_parcel(program: Program) -> bytes:
    """The program as bytes; raises what pickling raises."""
    cloudpickle: Any = require("cloudpickle", extra="cluster")

    modules = _own_modules()
    pickled = cloudpickle.dumps(program, protocol=5)
    return msgspec.msgpack.encode(Parcel(pickled, modules, _versions(), os.getcwd(), _state(program)))


def _state(program: Program) -> bytes:
    try:
        return state_fingerprint(program)
    except Exception:  # a walk over the user's objects; what is pickled is compared in any case
        return b""


def _own_modules() -> list[Module]:
    """The user's modules: those that are imported, and those in the script's folder, which may be imported later."""
    found: dict[str, Module] = {}
    for name, module in list(sys.modules.items()):
        path = _source_of(module)
        if path and not name.startswith(("__", "stoker.")) and name not in ("stoker", "sitecustomize"):
            _add(found, name, path, is_package=hasattr(module, "__path__"))
    for name in list(found):  # folders without an `__init__.py` are packages too, and have no file
        while (name := name.rpartition(".")[0]) and name not in found:
            found[name] = Module(name, "", True, b"")
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if script and not is_library(script):
        for path in sorted(Path(script).resolve().parent.glob("*.py"))[:_MOST_BESIDE]:
            if path.stem not in found and path != Path(script).resolve():
                _add(found, path.stem, str(path), is_package=False)
    return list(found.values())


def _add(found: dict[str, Module], name: str, path: str, *, is_package: bool) -> None:
    with contextlib.suppress(OSError):
        found[name] = Module(name, path, is_package, Path(path).read_bytes())


def _source_of(module: ModuleType | Any) -> str:
    """The file of a module that is the user's own; empty for all others."""
    path = getattr(module, "__file__", None)
    return path if isinstance(path, str) and path.endswith(".py") and not is_library(path) else ""


def _versions() -> dict[str, str]:
    """Versions of the installed packages that are imported, by the names that pip knows."""
    imported = {name.partition(".")[0] for name in sys.modules}
    named = importlib.metadata.packages_distributions()
    found = {name for module in imported for name in named.get(module, ())}
    return {
        name: importlib.metadata.version(name) for name in sorted(found) if name != "stoker" and not _is_within(name)
    }


def _is_within(name: str) -> bool:
    """Whether a package lies in another one's folder, as those that Ray brings along: it is there with that one."""
    folder = Path(str(importlib.metadata.distribution(name).locate_file("")))
    return (folder.parent / "__init__.py").exists()


def _words(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:300]

"""Compiled libraries, kept by content: the same program for the same machine is compiled once."""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from stoker.core.code.compiling import build_library, compiler
from stoker.core.processes.temporary import temporary_folder
from stoker.core.saying import say

OPTIONS = ("-O3", "-march=native")
WANTED = "the C++ engine of stoker deploy"
_BUILDING = "building-"


def library_path(text: str, folder: Path | None = None) -> Path:
    """The compiled library of a program; compiled now if it is not there.

    The file's name is a digest of the program, the compiler, its options and the processor's features, so that another
    machine that shares the folder compiles its own; and a digest of the library, so that one that was changed or cut
    short since is compiled again.

    Args:
        text: the whole program.
        folder: where libraries are kept; by default ``stoker/engines`` of the user's cache.

    Raises:
        RuntimeError: no compiler is there, or it fails.
    """
    command = compiler(WANTED)
    facts = "\n".join((*command, *OPTIONS, _features(), text))
    kept = folder or default_folder()
    name = hashlib.sha256(facts.encode()).hexdigest()[:32]
    for path in sorted(kept.glob(f"{name}-*.so")):
        if path.name == _sealed(name, path):
            return path
        say(f"compiles {WANTED} again: `{path}` was changed or cut short since it was made")
        path.unlink(missing_ok=True)
    kept.mkdir(parents=True, exist_ok=True, mode=0o700)
    with temporary_folder(_BUILDING, kept) as building:
        source, made = building / "engine.cpp", building / "engine.so"
        source.write_text(text, encoding="utf-8")
        build_library(source, made, wanted=WANTED, options=OPTIONS)
        # Whole or not at all, if another process compiles it too.
        return made.replace(kept / _sealed(name, made))


def _sealed(name: str, library: Path) -> str:
    """The name of a library's file, which holds the digest of its contents."""
    with contextlib.suppress(OSError), library.open("rb") as file:
        return f"{name}-{hashlib.file_digest(file, 'sha256').hexdigest()[:32]}.so"
    return ""


def default_folder() -> Path:
    """``stoker/engines`` of the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stoker" / "engines"


def _features(info: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's features, which ``-march=native`` depends on."""
    try:
        lines = info.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")

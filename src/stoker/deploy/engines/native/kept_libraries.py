"""Compiled libraries, kept by content: the same program for the same machine is compiled once."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from stoker.core.code.compiling import build_library, compiler

OPTIONS = ("-O3", "-march=native")
WANTED = "the C++ engine of stoker deploy"


def library_path(text: str, folder: Path | None = None) -> Path:
    """The compiled library of a program; compiled now if it is not there.

    The file's name is a digest of the program, the compiler, its options and the processor's features, so that another
    machine that shares the folder compiles its own.

    Args:
        text: the whole program.
        folder: where libraries are kept; by default ``stoker/engines`` of the user's cache.

    Raises:
        RuntimeError: no compiler is there, or it fails.
    """
    command = compiler(WANTED)
    facts = "\n".join((*command, *OPTIONS, _features(), text))
    kept = folder or default_folder()
    path = kept / f"{hashlib.sha256(facts.encode()).hexdigest()[:32]}.so"
    if path.exists():
        return path
    kept.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(prefix="building-", dir=kept) as building:
        source = Path(building, "engine.cpp")
        source.write_text(text, encoding="utf-8")
        made = Path(building, "engine.so")
        build_library(source, made, wanted=WANTED, options=OPTIONS)
        made.replace(path)  # whole or not at all, if another process compiles it too
    return path


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

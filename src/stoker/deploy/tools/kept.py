"""Results of tools, kept by content: the same files through the same tool are worked on once."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from stoker.core.errors import ToolError
from stoker.core.processes.temporary import remove_abandoned, temporary_folder

_SEAL = "seal"
_MAKING = "making-"


def kept(kind: str, facts: Iterable[str], make: Callable[[Path], None], folder: Path | None = None) -> Path:
    """The folder of a result; made now if it is not there.

    Each result is sealed by a digest of its files, so that one that was changed or cut short since is refused.

    Args:
        kind: of result, a word of the folder's name.
        facts: all that the result depends on: contents, options, versions.
        make: puts the result's files into an empty folder.
        folder: where results are kept; by default ``stoker/hardware`` of the user's cache.

    Raises:
        ToolError: a kept result is not what was kept; or `make` fails.
    """
    base = folder or default_folder()
    digest = hashlib.sha256()
    for fact in facts:
        data = fact.encode()
        digest.update(f"{len(data)}:".encode() + data)
    path = base / f"{kind}-{digest.hexdigest()[:32]}"
    if path.is_dir():
        remove_abandoned(_MAKING, base)
        _check(path)
        return path
    base.mkdir(parents=True, exist_ok=True, mode=0o700)
    with temporary_folder(_MAKING, base) as making:
        made = making / "result"
        made.mkdir()
        make(made)
        (made / _SEAL).write_text(_seal(made), encoding="ascii")
        try:
            made.rename(path)  # whole or not at all, also where another process makes it
        except OSError:
            if not path.is_dir():
                raise
            shutil.rmtree(made)
    return path


def default_folder() -> Path:
    """``stoker/hardware`` of the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stoker" / "hardware"


def _check(path: Path) -> None:
    seal = path / _SEAL
    if not seal.is_file() or seal.read_text(encoding="ascii", errors="replace") != _seal(path):
        raise ToolError(
            f"`{path}` must be what a tool made, and was changed since; remove it and run the command again"
        )


def _seal(path: Path) -> str:
    found = hashlib.sha256()
    for each in sorted(path.rglob("*")):
        if each.is_file() and each.name != _SEAL:
            with each.open("rb") as file:
                found.update(f"{each.relative_to(path)}:{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return found.hexdigest()

"""Folders of designs: what stoker wrote into one goes when another design is written there; files of others stay."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

DESIGN = "design.json"
ENGINE = "engine.json"
PROGRAM = "program.bin"
FIT = "fit.json"
"""What was found of the design when it was placed last."""


class _Written(msgspec.Struct, frozen=True):
    """What any description says of the files next to it."""

    digest: str
    files: tuple[str, ...]
    memories: tuple[str, ...] = ()


class _Placed(msgspec.Struct, frozen=True):
    digest: str
    found: msgspec.Raw


def write_files(folder: Path, contents: Mapping[str, bytes], description: str, text: bytes, digest: str) -> None:
    """Writes a design in the place of what a folder held, of whatever structure that was; the folder is made.

    Only files go that a description of stoker's names, and what was found of another design when it was placed.

    Args:
        folder: to write into.
        contents: files by name.
        description: name of the file that describes them, which is written last.
        text: of the description.
        digest: of the design.

    Raises:
        OSError: the folder cannot be written.
        ValueError: it has a description of the other structure that stoker cannot have written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    leaving = [name for each in (DESIGN, ENGINE) for name in _written(folder, each, own=each == description)]
    if _placed_digest(folder / FIT) not in (None, digest):
        leaving.append(FIT)
    for name in leaving:
        if name not in contents:
            (folder / name).unlink(missing_ok=True)
    for name, data in contents.items():
        (folder / name).write_bytes(data)
    (folder / description).write_bytes(text)


def _written(folder: Path, description: str, *, own: bool) -> list[str]:
    """Names of the files that a description names, and its own, which is the last; none if there is no such file."""
    path = folder / description
    if not path.exists():
        return []
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_Written)
    except msgspec.DecodeError as error:
        if own:
            return []  # it is written over
        raise ValueError(
            f"`{path}` must be what `stoker deploy rtl` wrote, or not be there: {error}; remove it, or write into "
            "another folder"
        ) from None
    names = [*found.files, *found.memories, *([PROGRAM] if description == ENGINE else [])]
    # A name that leads elsewhere was not written by stoker.
    return [*(name for name in names if Path(name).name == name), description]


def _placed_digest(path: Path) -> str | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_Placed).digest
    except (OSError, msgspec.DecodeError):
        return None

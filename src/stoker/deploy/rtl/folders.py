"""Folders of designs: what stoker wrote into one goes when another design is written there; files of others stay."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path

import msgspec

from stoker.core.errors import ConfigError

DESIGN = "design.json"
ENGINE = "engine.json"
PROGRAM = "program.bin"
FIT = "fit.json"
"""What was found of the design when it was placed last."""
DESCRIPTIONS = (DESIGN, ENGINE)


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

    Only files go that a description of stoker's names, and what was found of another design when it was placed. All is
    written next to its place before anything of the folder changes, and the description comes there last: a folder in
    which this ended early is no design.

    Args:
        folder: to write into; new, empty, or with a design.
        contents: files by name.
        description: name of the file that describes them.
        text: of the description.
        digest: of the design.

    Raises:
        ConfigError: the folder cannot be written.
        ValueError: it has other things alone, a description that stoker cannot have written, or another file with the
            name of one that would be written.
    """
    leaving = _checked(folder, {**contents, description: text})
    if _placed_digest(folder / FIT) not in (None, digest):
        leaving.append(FIT)
    new = not folder.exists()
    made = (folder.parent if new else folder) / f".{folder.name}-{secrets.token_hex(4)}"
    try:
        try:
            made.mkdir(parents=True)
            for name, data in {**contents, description: text}.items():
                (made / name).write_bytes(data)
            if new:
                made.rename(folder)
                return
            for name in (*DESCRIPTIONS, *leaving):
                if name in DESCRIPTIONS or name not in contents:
                    (folder / name).unlink(missing_ok=True)
            for name in (*contents, description):
                (made / name).replace(folder / name)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    except OSError as error:
        raise ConfigError(f"`{folder}` must be a folder that can be written, got: {error.strerror}") from error


def _checked(folder: Path, contents: Mapping[str, bytes]) -> list[str]:
    """Names of the files of the design that a folder has; nothing of someone else may be in the way of another one."""
    try:
        if not folder.exists():
            return []
        if not folder.is_dir():
            raise ValueError(f"`{folder}` must be a folder or not be there, got a file; write into another one")
        own = [name for each in DESCRIPTIONS for name in _written(folder, each)]
        for name, data in contents.items():
            path = folder / name
            if name not in own and path.exists() and not (path.is_file() and path.read_bytes() == data):
                raise ValueError(
                    f"`{path}` must be what `stoker deploy rtl` wrote, or not be there: no description of a design "
                    "names it; remove it, or write into another folder"
                )
        if not own and (other := min((each.name for each in folder.iterdir()), default=None)) is not None:
            raise ValueError(
                f"`{folder}` must be a new folder or one with a design, and holds something else: `{other}`; "
                "write into another folder"
            )
    except OSError as error:
        raise ConfigError(f"`{folder}` must be a folder that can be read, got: {error.strerror}") from error
    return own


def _written(folder: Path, description: str) -> list[str]:
    """Names of the files that a description names, and its own, which is the last; none if there is no such file."""
    path = folder / description
    if not path.exists():
        return []
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_Written)
    except msgspec.DecodeError as error:
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

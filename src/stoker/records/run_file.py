"""Files in a run folder that hold one record each: written whole, read with the same words where they are damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, TypeVar

import msgspec

from stoker.core.errors import RunFolderError
from stoker.core.texts import to_json


class Formatted(Protocol):
    """A record that says in which form it was written."""

    @property
    def format(self) -> int:
        """Number of the form."""
        ...


T = TypeVar("T", bound=Formatted)


def write_record(path: Path, record: object) -> None:
    """Writes a record into a run folder, which is made if need be; a reader sees all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(to_json(record))
    part.replace(path)


def read_record(path: Path, kind: type[T], *, what: str, newest: int) -> T | None:
    """The record in a file; None where there is no such file.

    Args:
        path: of the file.
        kind: of the record.
        what: it holds, for messages: ``the exchanges of a run``.
        newest: format that this stoker knows.

    Raises:
        RunFolderError: the file can't be read, or a newer stoker wrote it.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise RunFolderError(f"`{path}` cannot be read as {what}: {error}", path=str(path)) from error
    if found.format > newest:
        raise RunFolderError(
            f"`{path}` has format {found.format}, this stoker reads up to {newest}; upgrade with "
            "`pip install -U stoker`",
            path=str(path), format=found.format,
        )  # fmt: skip
    return found

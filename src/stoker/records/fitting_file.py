"""The file in a run folder that says how its program was made to fit: written at its end, found and read back."""

from __future__ import annotations

from pathlib import Path

import msgspec

from stoker.core.errors import RunFolderError
from stoker.core.texts import to_json
from stoker.records.fitting import FitRuns

FIT_FILE = "fit.json"
"""Its name."""
FORMAT = 1


def write_fits(folder: Path, runs: FitRuns) -> None:
    """Writes the fits of a run into its folder, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{FIT_FILE}.part"
    part.write_bytes(to_json(runs))
    part.replace(folder / FIT_FILE)  # a reader sees all of it or none


def read_fits(folder: Path | str) -> FitRuns:
    """The fits of a run; none where it has no file of them.

    Raises:
        RunFolderError: the file can't be read, or a newer stoker wrote it.
    """
    path = Path(folder) / FIT_FILE
    try:
        found = msgspec.json.decode(path.read_bytes(), type=FitRuns)
    except FileNotFoundError:
        return FitRuns()
    except (OSError, msgspec.MsgspecError) as error:
        raise RunFolderError(f"`{path}` cannot be read as the fit of a run: {error}", path=str(path)) from error
    if found.format > FORMAT:
        raise RunFolderError(
            f"`{path}` has format {found.format}, this stoker reads up to {FORMAT}; upgrade with "
            "`pip install -U stoker`",
            path=str(path), format=found.format,
        )  # fmt: skip
    return found

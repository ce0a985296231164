"""The file in a run folder that says how its program was made to fit: written at its end, found and read back."""

from __future__ import annotations

from pathlib import Path

from stoker.records.fitting import FitRuns
from stoker.records.run_file import read_record, write_record

FIT_FILE = "fit.json"
"""Its name."""
FORMAT = 1


def write_fits(folder: Path, runs: FitRuns) -> None:
    """Writes the fits of a run into its folder, which is made if need be."""
    write_record(folder / FIT_FILE, runs)


def read_fits(folder: Path | str) -> FitRuns:
    """The fits of a run; none where it has no file of them.

    Raises:
        RunFolderError: the file can't be read, or a newer stoker wrote it.
    """
    found = read_record(Path(folder) / FIT_FILE, FitRuns, what="the fit of a run", newest=FORMAT)
    return FitRuns() if found is None else found

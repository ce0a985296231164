"""The file in a run folder that has its exchanges: written by rank 0 at the end of a run, found and read back."""

from __future__ import annotations

from pathlib import Path

from stoker.core.errors import RunFolderError
from stoker.records.exchange import ExchangeRuns
from stoker.records.run_file import read_record, write_record
from stoker.records.runlog import RUNS_FOLDER

EXCHANGE_FILE = "exchange.json"
"""Its name."""
FORMAT = 1


def write_exchanges(folder: Path, runs: ExchangeRuns) -> None:
    """Writes the exchanges of a run into its folder, which is made if need be."""
    write_record(folder / EXCHANGE_FILE, runs)


def read_exchanges(folder: Path | str) -> ExchangeRuns:
    """The exchanges of a run; none where it has no file of them.

    Raises:
        RunFolderError: the file can't be read, or a newer stoker wrote it.
    """
    found = read_record(Path(folder) / EXCHANGE_FILE, ExchangeRuns, what="the exchanges of a run", newest=FORMAT)
    return ExchangeRuns() if found is None else found


def find_exchanges(name: str | None, root: Path | str = RUNS_FOLDER) -> Path:
    """The run that a person means: a folder, the name of one under ``root``, or the one that exchanged last.

    Raises:
        RunFolderError: there is no such run, or it exchanged nothing.
    """
    root = Path(root)
    if name is None:
        return _latest(root)
    for folder in (Path(name), root / name):
        if folder.name == EXCHANGE_FILE and folder.is_file():
            return folder.parent
        if folder.is_dir():
            return folder if (folder / EXCHANGE_FILE).is_file() else _latest(folder)
    raise RunFolderError(
        f"`{name}` is neither a program with `--ranks` and `--link`, nor a run folder, nor the name of one under "
        f"`{root}`; see `stoker exchange --help`",
        folder=name,
    )


def _latest(root: Path) -> Path:
    files = list(root.glob(f"*/{EXCHANGE_FILE}"))
    if not files:
        raise RunFolderError(
            f"`{root}` holds no run that planned its exchange; make one with `stoker run --comm auto train.py`",
            folder=str(root),
        )
    return max(files, key=lambda file: file.stat().st_mtime_ns).parent

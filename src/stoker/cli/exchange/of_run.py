"""`stoker exchange [RUN]`: what a run chose for its gradients, and what its steps measured."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from stoker.cli.output import print_json
from stoker.core.errors import RunFolderError
from stoker.records.exchange_file import EXCHANGE_FILE, find_exchanges, read_exchanges
from stoker.ui.exchange.run_text import render_exchange_runs
from stoker.ui.terminal import style_for


def is_run(word: str) -> bool:
    """Whether the word of a command line is a run rather than a program; an empty one is the latest run."""
    path = Path(word)
    if not word or path.name == EXCHANGE_FILE:
        return True
    if path.is_dir():
        return not (path / "__main__.py").is_file()
    return not path.is_file() and ":" not in word and not word.endswith((".py", ".pyw", ".pyz", ".zip", ".json"))


def show_run(name: str, *, as_json: bool) -> int:
    """Prints the exchanges of a run; returns the exit status.

    Args:
        name: of a run; empty for the latest.
        as_json: for programs.

    Raises:
        RunFolderError: there is no such run, or it exchanged nothing.
    """
    folder = find_exchanges(name or None)
    found = read_exchanges(folder)
    if not found.replicas and not found.notes:
        raise RunFolderError(
            f"`{folder}` must have the exchange of a module, got none; make one with `stoker run --comm auto train.py`",
            folder=str(folder),
        )
    if as_json:
        print_json(found)
        return 0
    style = style_for(sys.stdout, os.environ)
    sys.stdout.write(render_exchange_runs(found, style))
    return 0

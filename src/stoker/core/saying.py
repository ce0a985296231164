"""Lines that stoker itself writes to standard error."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Generator
from pathlib import Path


def say(text: str) -> None:
    """Writes a line to standard error; does nothing if that is missing, closed or full."""
    try:
        sys.stderr.write(f"stoker: {text}\n")
    except (AttributeError, OSError, ValueError):
        return


@contextlib.contextmanager
def said_to(log: Path) -> Generator[None]:
    """Sends this process's standard error, and that of its children, to a file."""
    try:
        kept = os.dup(2)
    except OSError:  # closed: there is nothing to send
        yield
        return
    with contextlib.suppress(AttributeError, OSError, ValueError):
        sys.stderr.flush()
    with log.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)

"""Lines of stoker's own on standard error."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """Writes a line to standard error; nothing where that is missing, closed or full: nobody can be told then."""
    try:
        sys.stderr.write(f"stoker: {text}\n")
    except (AttributeError, OSError, ValueError):
        return

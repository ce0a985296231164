"""Lines that stoker itself writes to standard error."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """Writes a line to standard error; does nothing if that is missing, closed or full."""
    try:
        sys.stderr.write(f"stoker: {text}\n")
    except (AttributeError, OSError, ValueError):
        return

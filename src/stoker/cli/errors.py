"""How a command ends on an error of stoker: one line on standard error, with a code, and exit status 2."""

from __future__ import annotations

import sys

from stoker.core.errors import StokerError

USAGE_STATUS = 2


def refuse(error: StokerError) -> int:
    """Prints the error for a person and returns the exit status that says "not run"."""
    print(f"stoker: error: {error}", file=sys.stderr)
    return USAGE_STATUS

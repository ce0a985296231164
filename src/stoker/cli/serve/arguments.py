"""A parser for sizes that the commands of this folder share."""

from __future__ import annotations

import argparse

from stoker.core.units import parse_bytes


def size(text: str) -> int:
    """A number of bytes."""
    try:
        value = parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be a size: {error}") from None
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1 byte, got {text!r}")
    return value

"""Parsers for sizes and shares that the commands of this folder share."""

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


def share(text: str) -> float:
    """A share, as ``10%`` or ``0.1``; above 0, at most 1."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = 0.0
    if not 0.0 < value <= 1.0:
        raise argparse.ArgumentTypeError(f"must be a share such as 10%, got {text!r}")
    return value

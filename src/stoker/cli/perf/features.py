"""`stoker perf features`: what one training step of a program computes, touches and keeps."""

from __future__ import annotations

import argparse
from pathlib import Path

from stoker.core.errors import ConfigError
from stoker.core.extras import require


def main(argv: list[str]) -> int:
    """Runs the program up to its second optimizer step, without a GPU; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="stoker perf features",
        description="FLOPs, bytes and memory of one training step of an unmodified program, found without a GPU.",
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write all operations to this file")
    parser.add_argument(
        "--hint", action="append", default=[], metavar="NAME=VALUE",
        help="a size that follows from values: elements or a fraction, by line or operation (train.py:31=0.15)",
    )  # fmt: skip
    parser.add_argument("--target", choices=("cuda", "cpu"), default="cuda", help="whose kernels (default: cuda)")
    parser.add_argument("script", help="the program")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the program")
    chosen = parser.parse_args(argv)
    require("torch", extra="torch")
    # Imported here: help must not wait for them.
    from stoker.perf.features.program import characterise_program
    from stoker.perf.features.records import parse_hints
    from stoker.perf.features.table import text_of

    try:
        hints = parse_hints(chosen.hint)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    found = characterise_program([chosen.script, *chosen.arguments], target=chosen.target, hints=hints)
    print(text_of(found), end="")
    if chosen.json is not None:
        chosen.json.write_bytes(found.to_json())
        print(f"\n  all operations: {chosen.json}")
    return 0

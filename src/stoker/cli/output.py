"""Output of a command: JSON on standard output, or a page or a picture in a file."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from stoker.core.errors import ConfigError
from stoker.core.texts import escaped, to_json


def json_of(record: object) -> str:
    """A record as JSON that a person can read."""
    return msgspec.json.format(to_json(record)).decode() + "\n"


def print_json(record: object) -> None:
    """Prints a record as JSON."""
    sys.stdout.write(json_of(record))


def write_text(text: str, output: str, option: str) -> None:
    """Writes text to a file and says so, or prints it where ``-`` is the file.

    Args:
        text: to write.
        output: the file.
        option: that named it, for the message.

    Raises:
        ConfigError: the file cannot be written.
    """
    if output == "-":
        sys.stdout.write(text)
        return
    try:
        Path(output).write_text(escaped(text), encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"`{option}` must name a file that can be written, got `{output}`: {error.strerror}"
        ) from error
    print(f"wrote {escaped(output)} ({len(text.encode()) / 1000:.0f} kB)")

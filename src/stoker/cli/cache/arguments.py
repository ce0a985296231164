"""What the commands of the cache have in common: where the cache is, how things are printed."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stoker.cache.page_stores import page_store
from stoker.cache.rule_settings import CacheSettings, cache_settings, note_size, settled
from stoker.cache.store.page_store import PageStore
from stoker.core.config_sources import resolve
from stoker.core.errors import ConfigError
from stoker.core.units import parse_bytes
from stoker.ui.report_text import Style
from stoker.ui.terminal import style_for


class _Once(argparse.Action):
    """Refuses a second directory, of which argparse would forget the first."""

    def __call__(self, parser: object, namespace: argparse.Namespace, values: object, option: object = None) -> None:
        """Keeps the value."""
        if (first := getattr(namespace, self.dest)) is not None:
            raise ConfigError(
                f"`--dir` must be given once, got {first} and {values}: a cache is one directory; "
                "for several disks run a worker on each: stoker cache start --dir DIR --listen HOST:PORT"
            )
        setattr(namespace, self.dest, values)


def parser(name: str, description: str, epilog: str = "") -> argparse.ArgumentParser:
    """A parser with the options that every command of the cache has."""
    made = argparse.ArgumentParser(
        prog=f"stoker cache {name}",
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "--dir", action=_Once, metavar="DIR", help="the cache's directory (default: as set, or the user's own)"
    )
    return made


def settings_of(arguments: argparse.Namespace) -> CacheSettings:
    """The settings of the cache as this folder and these arguments have them."""
    settings = cache_settings(resolve().settings)
    if arguments.dir:
        settings = replace(settings, directory=Path(arguments.dir).expanduser().absolute())
    if getattr(arguments, "size", None):
        settings = replace(settings, limit_bytes=size_of("--size", arguments.size))
    asked_for = settings.limit_bytes is not None
    settings = settled(settings)
    if asked_for:
        try:
            note_size(settings)
        except OSError as error:
            raise ConfigError(
                f"`{settings.directory}` must be a folder that can be written: {error.strerror}"
            ) from None
    return settings


def size_of(option: str, text: str) -> int:
    """Bytes of an option's value.

    Raises:
        ConfigError: it is no size.
    """
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise ConfigError(f"`{option}` must be a size such as `50GB`, got {text!r} ({error})") from None


def directory_of(settings: CacheSettings) -> Path:
    """Where the cache is."""
    assert settings.directory is not None, "settings of a command are settled"
    return settings.directory


def open_existing(settings: CacheSettings) -> PageStore:
    """The cache, which must be there: looking at it is no reason to make one.

    Raises:
        ConfigError: there is none.
    """
    directory = directory_of(settings)
    if not (directory / "format").exists():
        raise ConfigError(
            f"`{directory}` must be a cache, and there is none yet; programs make it when they read: "
            "stoker run --cache train.py, or beforehand: stoker cache warm URL"
        )
    return page_store(settings.directory, settings.limit_bytes, settings.rules)


def print_json(content: Any) -> None:
    """Prints one JSON object."""
    print(json.dumps(content, indent=2))


def show(lines: Sequence[str]) -> None:
    """Prints lines."""
    sys.stdout.write("\n".join(lines) + "\n")


def stdout_style() -> Style:
    """What standard output can show."""
    return style_for(sys.stdout, os.environ)

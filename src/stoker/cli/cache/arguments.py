"""Shared parts of the cache's commands: the location of the cache, and printing."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from stoker.cache.cluster.membership.joining import open_membership
from stoker.cache.filesystem.resolve_url import checked_url
from stoker.cache.page_stores import note_asked, page_store, settled
from stoker.cache.settings import CacheSettings, is_ring
from stoker.cache.store.page_store import PageStore
from stoker.cli.arguments import Parser
from stoker.core.errors import ConfigError
from stoker.core.settings import LEAST_BYTES
from stoker.core.units import format_bytes, parse_bytes
from stoker.run.settings import resolve
from stoker.ui.report_text import Style
from stoker.ui.terminal import style_for


class _Once(argparse.Action):
    """Raises for a second directory, since argparse would drop the first."""

    def __call__(self, parser: object, namespace: argparse.Namespace, values: object, option: object = None) -> None:
        """Keeps the value."""
        if (first := getattr(namespace, self.dest)) is not None:
            raise ConfigError(
                f"`--dir` must be given once, got {first} and {values}: a cache is one directory; "
                "a worker takes several disks: stoker cache start --dir A --dir B"
            )
        setattr(namespace, self.dest, values)


def parser(name: str, description: str, epilog: str = "", *, several: bool = False) -> Parser:
    """A parser with the options that every command of the cache has.

    Args:
        name: of the command.
        description: of it.
        epilog: what its help ends with.
        several: whether it takes several directories; they are a list then.
    """
    made = Parser(
        prog=f"stoker cache {name}",
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "--dir",
        action="append" if several else _Once,
        metavar="DIR",
        help=f"the cache's directory{', may be repeated' if several else ''} (default: as set, or the user's own)",
    )
    return made


def settings_of(arguments: argparse.Namespace, *, note: bool = True) -> CacheSettings:
    """The cache settings from this folder and these arguments.

    Args:
        arguments: of a command.
        note: store the requested size and eviction policy in the cache.
    """
    settings = resolve().settings.cache
    if arguments.dir:
        settings = replace(settings, directory=arguments.dir)
    if getattr(arguments, "size", None):
        settings = replace(settings, limit_bytes=size_of("--size", arguments.size))
    settings = settled(settings)
    if note:
        note_asked(settings)
    return settings


def checked(url: str) -> str:
    """Checks that a URL names a place and returns it.

    Raises:
        ConfigError: it does not.
    """
    checked_url(url)
    return url


def add_cluster(made: argparse.ArgumentParser, join_help: str) -> None:
    """Adds the options that name a cluster and how to reach it."""
    made.add_argument("--join", metavar="RING", help=join_help)
    made.add_argument("--secret-file", metavar="FILE", help="of that cluster (default: as set, or DIR/secret)")
    made.add_argument("--tls-ca", metavar="FILE", help="certificate authorities of its workers (default: as set)")


def joined(arguments: argparse.Namespace, settings: CacheSettings) -> CacheSettings:
    """The settings with the cluster that the arguments name."""
    if arguments.join and not is_ring(arguments.join):
        open_membership(arguments.join)  # refuses it, in the words of the command line
    given = {name: getattr(arguments, name) for name in ("join", "secret_file", "tls_ca") if getattr(arguments, name)}
    return settled(replace(settings, cluster=replace(settings.cluster, **given)))


def size_of(option: str, text: str, least: int = LEAST_BYTES) -> int:
    """Bytes of an option's value.

    Args:
        option: as it is written.
        text: its value.
        least: smallest value (bytes).

    Raises:
        ConfigError: it is not a size, or too small.
    """
    try:
        found = parse_bytes(text)
    except ValueError as error:
        raise ConfigError(f"`{option}` must be a size such as `50GB`, got {text!r} ({error})") from None
    if found < least:
        raise ConfigError(f"`{option}` must be at least {format_bytes(least)}, got {text!r}")
    return found


def directory_of(settings: CacheSettings) -> Path:
    """Where the cache is."""
    return Path(settings.directory)


def open_existing(settings: CacheSettings) -> PageStore:
    """The cache, which must exist: inspecting does not create one.

    Raises:
        ConfigError: it does not exist.
    """
    directory = directory_of(settings)
    try:
        is_there = (directory / "format").exists()
    except PermissionError:
        is_there = True  # of someone else: opening it says so
    if not is_there:
        raise ConfigError(
            f"`{directory}` must be a cache, and there is none yet; programs make it when they read: "
            "stoker run --cache train.py, or beforehand: stoker cache warm URL"
        )
    return page_store(replace(settings, verify="always"))


def print_json(content: object) -> None:
    """Prints one JSON object."""
    print(json.dumps(content, indent=2))


def show(lines: Sequence[str]) -> None:
    """Prints lines."""
    sys.stdout.write("\n".join(lines) + "\n")


def stdout_style() -> Style:
    """The style of standard output."""
    return style_for(sys.stdout, os.environ)

"""`stoker cache COMMAND`: finds the command's function and hands it the remaining arguments."""

from __future__ import annotations

import difflib
import importlib
import sys
from typing import NamedTuple

from stoker.cli.errors import refuse
from stoker.core.errors import StokerError
from stoker.core.extras import require


class CacheCommand(NamedTuple):
    """One command below `stoker cache`.

    Attributes:
        name: of the command.
        module: below this package.
        help: what it does.
    """

    name: str
    module: str
    help: str


COMMANDS = (
    CacheCommand(
        "warm", "warm", "fill the cache with the objects of a URL, a pattern or a list, before they are needed"
    ),
    CacheCommand("status", "status", "how full the cache is, and what it is worth; the workers of a cluster"),
    CacheCommand("ls", "content", "what is cached below a URL"),
    CacheCommand("stat", "content", "one object: version, age, how much of it is cached"),
    CacheCommand("explain", "explain", "why the next read of an object hits or misses, and which rule says so"),
    CacheCommand("pin", "keeping", "keep what is below a URL whatever else comes"),
    CacheCommand("unpin", "keeping", "end that"),
    CacheCommand("evict", "keeping", "drop what is cached below a URL"),
    CacheCommand("verify", "keeping", "compare everything that is cached with its checksums"),
    CacheCommand("bench", "bench", "read an object from the store and from the cache in turn, and compare"),
    CacheCommand("start", "start", "serve this machine's cache to others, as a node of a cluster"),
    CacheCommand("secret", "secret", "make the secret that the machines of a cluster share"),
)


def main(argv: list[str]) -> int:
    """Runs one command of the cache; returns the exit status."""
    if not argv or argv[0] in ("-h", "--help"):
        print(help_text(), file=sys.stdout if argv else sys.stderr)
        return 0 if argv else 2
    command = next((command for command in COMMANDS if command.name == argv[0]), None)
    if command is None:
        close = difflib.get_close_matches(argv[0], [command.name for command in COMMANDS], n=1)
        remedy = f"did you mean `stoker cache {close[0]}`?" if close else "see `stoker cache --help`"
        return refuse(f"`{argv[0]}` is not a command of the cache; {remedy}")
    for package in ("fsspec", "xxhash"):
        require(package, extra="cache")
    module = importlib.import_module(f"stoker.cli.cache.{command.module}")
    run = getattr(module, command.name, None) or module.main
    try:
        return run(argv[1:])
    except (BrokenPipeError, StokerError):
        raise
    except OSError as error:
        # Of a store or a disk; what it is about is in its own words.
        return refuse(f"`stoker cache {argv[0]}` could not go on: {type(error).__name__}: {error}")


def help_text() -> str:
    """What `stoker cache --help` prints."""
    lines = [
        "usage: stoker cache COMMAND [arguments]",
        "",
        "The data cache between remote stores (s3://, gs://, ...) and programs. Programs use it by",
        "`stoker run --cache train.py`, by `stoker.cache.install()`, or by URLs such as stoker://s3/bucket/key.",
        "",
        "commands:",
        *(f"  {command.name:<9}{command.help}" for command in COMMANDS),
        "",
        "Where the cache is: --dir, the setting `cache`, $STOKER_CACHE_DIR, or ~/.cache/stoker/pages.",
        "`stoker cache COMMAND --help` says more.",
    ]
    return "\n".join(lines)

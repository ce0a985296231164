"""`stoker cache COMMAND`: finds the command's function and passes it the remaining arguments."""

from __future__ import annotations

import importlib
import sys

from stoker.cli.errors import refuse
from stoker.cli.groups import Subcommand, choose
from stoker.core.errors import CacheError, StokerError
from stoker.core.extras import require

COMMANDS = (
    Subcommand("warm", "warm", "fill the cache with the objects of a URL, a pattern or a list, before they are needed"),
    Subcommand("status", "status", "show the cache's size and hit ratio, or the workers of a cluster"),
    Subcommand("ls", "content", "list what is cached below a URL"),
    Subcommand("stat", "content", "show one object: version, age, how much of it is cached"),
    Subcommand("explain", "explain", "show why the next read of an object hits or misses, and which rule decides"),
    Subcommand("pin", "keeping", "never evict what is below a URL"),
    Subcommand("unpin", "keeping", "allow it to be evicted again"),
    Subcommand("evict", "keeping", "evict what is cached below a URL"),
    Subcommand("verify", "keeping", "verify the checksums of everything that is cached"),
    Subcommand("bench", "bench", "read an object from the store and from the cache in turn, and compare"),
    Subcommand("start", "start", "serve this machine's cache to others, as a node of a cluster"),
    Subcommand("secret", "secret", "make the secret that the machines of a cluster share"),
)


def main(argv: list[str]) -> int:
    """Runs one command of the cache; returns the exit status."""
    command = choose("cache", COMMANDS, help_text(), argv)
    if isinstance(command, int):
        return command
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
        return _refuse(argv[0], error)
    except Exception as error:
        if not _is_of_a_store(error):
            raise
        return _refuse(argv[0], error)


def _is_of_a_store(error: BaseException) -> bool:
    """Whether the client of a store raised it (no credentials, say): what stoker or Python raised is our mistake."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    package = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
    return package not in ("", "stoker", "__main__") and package not in sys.stdlib_module_names


def _refuse(name: str, error: Exception) -> int:
    text = " ".join(str(error).split())
    return refuse(CacheError(f"`stoker cache {name}` failed: {type(error).__name__}: {text}"))


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

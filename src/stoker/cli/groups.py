"""Commands with subcommands: `stoker cache warm`, `stoker perf fleet`."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Sequence
from typing import NamedTuple

from stoker.cli.errors import refuse
from stoker.core.errors import ConfigError


class Subcommand(NamedTuple):
    """One command of a group.

    Attributes:
        name: of the command.
        module: below the group's package.
        help: what it does.
    """

    name: str
    module: str
    help: str


def choose(group: str, commands: Sequence[Subcommand], help_text: str, argv: list[str]) -> Subcommand | int:
    """The requested command; otherwise an exit status, after the help or an error was shown."""
    if not argv or argv[0] in ("-h", "--help"):
        print(help_text, file=sys.stdout if argv else sys.stderr)
        return 0 if argv else 2
    for command in commands:
        if command.name == argv[0]:
            return command
    close = difflib.get_close_matches(argv[0], [command.name for command in commands], n=1)
    remedy = f"did you mean `stoker {group} {close[0]}`?" if close else f"see `stoker {group} --help`"
    return refuse(ConfigError(f"`{argv[0]}` is not a command of `stoker {group}`; {remedy}"))

"""Command lines that name a program: our own options come before it, and all that follows it belongs to it.

argparse would mistake options of the program for stoker's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import NamedTuple

from stoker.core.errors import ConfigError


class CommandOption(NamedTuple):
    """An option of a command; without a rule, a switch.

    Attributes:
        rule: What its value must be, as the end of "must be followed by ...".
        default: Its value where none follows ``=``, so that the program can come next; None where one must be given.
    """

    rule: str = ""
    default: str | None = None


def split(argv: Sequence[str], command: str, options: Mapping[str, CommandOption]) -> tuple[dict[str, str], list[str]]:
    """Splits a command line into options, as texts by name, and the program with its arguments.

    Options end at the first other word, at ``-m module``, ``-c command`` or ``-``, or after ``--``. A request for help
    is the one option ``help`` and nothing else.

    Args:
        argv: Words after the command.
        command: Such as ``stoker run``; for the messages.
        options: By name, without the dashes.

    Raises:
        ConfigError: An option is unknown, lacks its value or has one too many.
    """
    chosen: dict[str, str] = {}
    words = list(argv)
    while words:
        word = words[0]
        if word == "--":
            words.pop(0)
            break
        if word in ("-h", "--help"):
            return {"help": ""}, []
        if not word.startswith("-") or word == "-" or word[:2] in ("-m", "-c"):
            break
        words.pop(0)
        name, equals, value = word.partition("=")
        key = name.removeprefix("--")
        if key == name or key not in options:
            raise ConfigError(f"`{name}` is not an option of `{command}`; {_remedy(word, command, options)}")
        chosen[key] = _value(name, options[key], value if equals else None, words)
    return chosen, words


def check_program(program: Sequence[str], command: str) -> None:
    """Raises for a command line without a program.

    Raises:
        ConfigError: It does not.
    """
    if not program or list(program) in (["-m"], ["-c"]):
        found = f"`{program[0]}` alone" if program else "nothing"
        raise ConfigError(f"`script.py` or `-m module` must follow the options, got {found}; see `{command} --help`")


def _remedy(word: str, command: str, options: Mapping[str, CommandOption]) -> str:
    near = get_close_matches(word.partition("=")[0], [f"--{name}" for name in options], n=1, cutoff=0.7)
    if near:
        return f"did you mean `{near[0]}`?"
    if word.startswith("--"):
        return f"options of the program go after the script; `{command} --help` lists stoker's own"
    return f"options of python go before: `python {word} -m {command} …`"


def _value(name: str, option: CommandOption, given: str | None, rest: list[str]) -> str:
    if not option.rule:
        if given is not None:
            raise ConfigError(f"`{name}` takes no value, got {given!r}")
        return "true"
    if given is not None:
        return given
    if option.default is not None:
        return option.default
    if not rest:
        raise ConfigError(f"`{name}` must be followed by {option.rule}, got nothing")
    return rest.pop(0)

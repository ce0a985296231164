"""Command lines that argparse parses: its errors look like all other errors of stoker.

One line with the rule, the value found, the next command and the code of :class:`ConfigError`; the status is 2.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import NoReturn

from stoker.core.errors import ConfigError
from stoker.core.units import parse_seconds

INSECURE = "join a cluster without token authentication too"
"""What `--insecure` of commands that join a Ray cluster does."""

_SUBJECT = re.compile(r"`(?P<name>\w+)`", re.ASCII)


def split_program(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Arguments of a command, and those of the program after ``--``."""
    words = list(argv)
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


class Parser(argparse.ArgumentParser):
    """An argument parser that raises instead of printing its usage and ending the process."""

    def error(self, message: str) -> NoReturn:
        """Raises for an invalid command line.

        Args:
            message: argparse's own.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(f"{self._told(message)}; see `{self.prog} --help`")

    def _told(self, message: str) -> str:
        """Rewrites an error of argparse as a rule about the argument; unknown errors stay unchanged."""
        if unknown := re.fullmatch(r"unrecognized arguments: (\S+).*", message, re.DOTALL):
            return self._of_unknown(unknown[1])
        if missing := re.fullmatch(r"the following arguments are required: (.+)", message):
            names = " and ".join(f"`{name}`" for name in missing[1].split(", "))
            return f"{names} must be given, got nothing"
        if unclear := re.fullmatch(r"ambiguous option: (\S+) could match (.+)", message):
            return f"`{unclear[1]}` must be one of {unclear[2]}, whole"
        if about := re.fullmatch(r"argument (?:(.+?)/)?(\S+?): (.+)", message, re.DOTALL):
            return f"`{about[2]}` {self._of_argument(about[2], about[3])}"
        return message

    def _of_unknown(self, word: str) -> str:
        if not word.startswith("-"):
            return f"`{word}` is one argument too many for `{self.prog}`"
        name = word.partition("=")[0]
        near = get_close_matches(name, self._option_string_actions, n=1, cutoff=0.7)
        if near:
            return f"`{name}` is not an option of `{self.prog}`, did you mean `{near[0]}`?"
        behind = (
            "; arguments of the program go behind `--`" if "-- arguments of the program" in self.format_usage() else ""
        )
        return f"`{name}` is not an option of `{self.prog}`{behind}"

    def _of_argument(self, name: str, text: str) -> str:
        action = self._option_string_actions.get(name) or next((a for a in self._actions if a.metavar == name), None)
        if action is not None and text.startswith("expected "):
            shown = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
            return f"must be followed by {shown}, got nothing"
        if action is not None and (wrong := re.match(r"invalid choice: (.+) \(", text)) and action.choices is not None:
            return f"must be one of {', '.join(map(str, action.choices))}, got {wrong[1]}"
        if both := re.fullmatch(r"not allowed with argument (?:\S+/)?(\S+)", text):
            return f"must not go with `{both[1]}`"
        if spare := re.fullmatch(r"ignored explicit argument (.+)", text):
            return f"takes no value, got {spare[1]}"
        return text


def as_typed(error: Exception, options: Mapping[str, str] | Sequence[str]) -> ConfigError:
    """A function's refusal as that of the command that called it: the parameter it begins with is named as users do.

    Args:
        error: whose text begins with a parameter's name in backticks.
        options: by parameter; or the parameters whose option has their name.
    """
    names = options if isinstance(options, Mapping) else {name: f"--{name}" for name in options}
    found = _SUBJECT.match(str(error))
    if found is None or found["name"] not in names:
        return ConfigError(str(error))
    return ConfigError(f"`{names[found['name']]}`{str(error)[found.end() :]}")


def whole(least: int, most: int | None = None) -> Callable[[str], int]:
    """A parser for whole numbers.

    Args:
        least: of the number.
        most: of it.
    """
    bounds = f"of at least {least}" if most is None else f"from {least} to {most:,}"

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least or (most is not None and value > most):
            raise argparse.ArgumentTypeError(f"must be a whole number {bounds}, got {text!r}")
        return value

    return read


def amount(least: float, most: float, what: str = "a number") -> Callable[[str], float]:
    """A parser for numbers.

    Args:
        least: of the number.
        most: of it.
        what: it is, as the end of "must be".
    """

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be {what} from {least:g} to {most:g}, got {text!r}")
        return value

    return read


def share(example: str, *, with_none: bool = False, with_all: bool = False) -> Callable[[str], float]:
    """A parser for shares from 0 to 1, written in percent: 0.5 alone could be one part in two as well as in 200.

    Args:
        example: such a share, for the message.
        with_none: 0% is one, too.
        with_all: 100% is one, too.
    """
    bounds = f"{'at least' if with_none else 'above'} 0% and {'at most' if with_all else 'below'} 100%"

    def read(text: str) -> float:
        number, percent, rest = text.partition("%")
        try:
            value = float(number) / 100
        except ValueError:
            value = math.nan
        if not percent or rest or math.isnan(value):
            raise argparse.ArgumentTypeError(f"must be a share in percent such as {example}, got {text!r}")
        if not (0.0 < value < 1.0 or (with_none and value == 0.0) or (with_all and value == 1.0)):
            raise argparse.ArgumentTypeError(f"must be {bounds}, such as {example}, got {text!r}")
        return value

    return read


def duration(example: str) -> Callable[[str], float]:
    """A parser for positive times, in seconds.

    Args:
        example: such a time, for the message.
    """

    def read(text: str) -> float:
        try:
            value = parse_seconds(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"must be a positive time such as {example}: {error}") from None
        if not 0.0 < value < math.inf:
            raise argparse.ArgumentTypeError(f"must be a positive time such as {example}, got {text!r}")
        return value

    return read

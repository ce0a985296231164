"""Makes the pages of the reference that are lists of what the code has: `make docs`, which a test compares with them.

Options come from the parsers themselves and not from what `--help` prints of them, which differs between versions of
Python.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import os
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import stoker
import stoker.cache
import stoker.perf
import stoker.train
import stoker.train.arena
from stoker.cli.arguments import Parser
from stoker.cli.cache.main import COMMANDS as CACHE_COMMANDS
from stoker.cli.cluster.main import COMMANDS as CLUSTER_COMMANDS
from stoker.cli.deploy.main import COMMANDS as DEPLOY_COMMANDS
from stoker.cli.main import COMMANDS, main
from stoker.cli.perf.main import COMMANDS as PERF_COMMANDS
from stoker.cli.serve.main import COMMANDS as SERVE_COMMANDS
from stoker.core.settings import Key
from stoker.core.settings_sources import PRECEDENCE
from stoker.core.units import format_bytes, format_seconds
from stoker.run.settings import KEYS, RunSettings

REFERENCE = Path(__file__).resolve().parent / "reference"
GROUPS = {
    "cache": CACHE_COMMANDS, "cluster": CLUSTER_COMMANDS, "deploy": DEPLOY_COMMANDS, "perf": PERF_COMMANDS,
    "serve": SERVE_COMMANDS,
}  # fmt: skip
ABOUT_COMMANDS = """\
Every command with its arguments. How they are used: [running programs](../guide/run.md). A command that refuses its
arguments prints one line that says what to change, and exits with status 2."""
ABOUT_SETTINGS = """\
Options of `stoker run`. `stoker config show` prints the value of each in a folder, and where it comes from. A setting
`max-workers` is `--max-workers` on the command line, `STOKER_MAX_WORKERS` in the environment, `max-workers` in
`[tool.stoker]` of `pyproject.toml` or in `stoker.toml`, and `max_workers` in `stoker.feeding`. `run-dir` has
no variable. `auto` leaves a value to stoker."""
ABOUT_API = """\
What programs import: `stoker`, its cache, and what describes a step. Everything else may change between versions. None
of it is needed for `stoker run`."""
API = (stoker, stoker.cache, stoker.perf, stoker.train, stoker.train.arena)
MAX_DEFAULT = 40
"""Characters of an argument's default that a signature shows."""
_HOME = "/home/you"
_MADE = "<!-- Made by `make docs` from the code; change it there. -->"


def pages() -> dict[Path, str]:
    """The generated pages: text by file."""
    return {
        REFERENCE / "commands.md": commands_page(),
        REFERENCE / "settings.md": settings_page(),
        REFERENCE / "api.md": api_page(),
    }


def commands_page() -> str:
    """All commands, each with its arguments."""
    parts = [
        _MADE,
        "# Commands",
        ABOUT_COMMANDS,
        "\n".join(f"- [`stoker {name}`](#stoker-{name.replace(' ', '-')}): {text}" for name, text in _listed()),
    ]
    for name, _ in _listed():
        parts += [f"## stoker {name}", *_described(name)]
    return "\n\n".join(parts) + "\n"


def settings_page() -> str:
    """All settings, with their rules, defaults and sources."""
    meanings = _meanings()
    rows = ["| setting | must be | default | meaning |", "|---|---|---|---|"]
    rows += [
        f"| `{key.name}` | {_cell(key.option.rule)} | {_default(key)} | {_cell(meanings[key.name])} |" for key in KEYS
    ]
    return (
        "\n\n".join(
            [
                _MADE,
                "# Settings",
                ABOUT_SETTINGS,
                "\n".join(rows),
                "The first of these that names a setting wins; a key that is unknown is an error:",
                "\n".join(f"{number}. {source}" for number, source in enumerate(PRECEDENCE, 1)),
            ]
        )
        + "\n"
    )


def api_page() -> str:
    """What programs may import, with its documentation."""
    parts = [_MADE, "# Python API", ABOUT_API]
    for module in API:
        for name in sorted(set(module.__all__) - {"__version__"}, key=str.lower):
            parts += _documented(f"{module.__name__}.{name}", getattr(module, name))
    return "\n\n".join(parts) + "\n"


def _documented(name: str, thing: object) -> list[str]:
    """A function, or a class with its public methods."""
    parts = [f"## {name}", _block(name.rpartition(".")[2], thing)]
    if isinstance(thing, type):
        own = {key: value for key, value in vars(thing).items() if not key.startswith("_")}
        parts += [_block(f"{thing.__name__}.{key}", value) for key, value in own.items() if inspect.isroutine(value)]
    return parts


def _block(name: str, thing: object) -> str:
    heading = name
    if inspect.isroutine(thing):
        heading += _signature(thing)
    return f"```text\n{heading}\n\n{textwrap.indent(inspect.getdoc(thing) or '', '    ')}\n```"


class _Bare(str):
    """Text that stands in a signature without quotes."""

    __repr__ = str.__str__


def _signature(thing: Callable[..., object]) -> str:
    """The arguments of a function; long defaults are left to its documentation."""
    signature = inspect.signature(thing)
    arguments = [
        argument.replace(
            annotation=_bare(argument.annotation),
            default=_Bare("...") if len(repr(argument.default)) > MAX_DEFAULT else argument.default,
        )
        for argument in signature.parameters.values()
    ]
    text = signature.replace(parameters=arguments, return_annotation=_bare(signature.return_annotation))
    return str(text)


def _bare(annotation: object) -> object:
    return _Bare(annotation) if isinstance(annotation, str) else annotation


def _listed() -> Iterator[tuple[str, str]]:
    """Commands with what each does; those of a group behind it."""
    for command in COMMANDS:
        name = "config show" if command.name == "config" else command.name
        yield name, command.help
        for subcommand in GROUPS.get(command.name, ()):
            yield f"{command.name} {subcommand.name}", subcommand.help


def _described(name: str) -> list[str]:
    """Paragraphs on one command: its own text where it prints one, else what its parser has."""
    parsers: list[argparse.ArgumentParser] = []
    printed = io.StringIO()
    with (
        mock.patch.object(Parser, "print_help", lambda parser, file=None: parsers.append(parser)),
        mock.patch.dict(os.environ, {"HOME": _HOME, "XDG_STATE_HOME": "", "XDG_CACHE_HOME": "", "XDG_CONFIG_HOME": ""}),
        contextlib.redirect_stdout(printed),
        contextlib.suppress(SystemExit),
    ):
        main([*name.split(), "--help"])
    if not parsers:
        return [f"```text\n{printed.getvalue().strip()}\n```"]
    parser = parsers[-1]
    parts = [" ".join((parser.description or "").split())]
    actions = [action for action in parser._actions if action.dest != "help"]
    if actions:
        rows = ["| argument | value | meaning |", "|---|---|---|"]
        rows += [f"| {_names(action)} | {_value(action)} | {_cell(_help(action))} |" for action in actions]
        parts.append("\n".join(rows))
    if parser.epilog:
        parts.append(f"```text\n{parser.epilog.strip()}\n```")
    return [part for part in parts if part]


def _names(action: argparse.Action) -> str:
    named = ", ".join(f"`{option}`" for option in action.option_strings)
    return named or f"`{action.metavar or action.dest}`"


def _value(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    if action.choices:
        return ", ".join(f"`{choice}`" for choice in action.choices)
    return f"`{action.metavar or action.dest.upper()}`" if action.option_strings else ""


def _help(action: argparse.Action) -> str:
    return (action.help or "") % {**vars(action), "prog": ""}


def _meanings() -> dict[str, str]:
    """What `stoker run --help` says of each setting."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        main(["run", "--help"])
    found = re.findall(r"^  --([\w-]+)(?: or --\S+| \S+)? +(.*)$", printed.getvalue(), re.MULTILINE)
    return dict(found)


def _default(key: Key) -> str:
    field, value = key.field, key.of(RunSettings())
    if value is None:
        return "none" if field in ("replay", "versus_plain") else "`auto`"
    if isinstance(value, bool):
        return "on" if value else "off"
    if field.endswith("_bytes"):
        return format_bytes(value)
    return format_seconds(value) if field.endswith("_s") else f"`{value}`"


def _cell(text: str) -> str:
    """Text for a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|").replace(_HOME, "~")


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.relative_to(Path.cwd())}")

"""Where settings come from: command line, environment, the project's file, the user's file, defaults, in this order.

The first source that names a key wins, and its origin is kept so that `stoker config show` can say it. A key that no
one knows is an error with a suggestion: a misspelt setting that is silently ignored costs a day.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from stoker.core.config import KEYS, Key, Settings, settings_of
from stoker.core.errors import ConfigError

PREFIX = "STOKER_"

INTERNAL_VARIABLES = (
    "STOKER_ACTIVE",
    "STOKER_DATA_WORKER",
    "STOKER_RUN_DIR",
    "STOKER_RUN_ID",
    "STOKER_SETTINGS",
)
"""Variables through which stoker's own processes talk to each other; none of them is a setting.

So ``run-dir`` has no variable: ``STOKER_RUN_DIR`` carries the folder of the run at hand to its child processes.
"""

OTHER_VARIABLES = ("STOKER_CACHE_DIR", "STOKER_CACHE_INSTALL", "STOKER_CACHE_RUN")
"""Variables of the data cache that are no settings of a run: where it keeps its pages, and what its processes tell
their children."""

PRECEDENCE = (
    "command line",
    "environment STOKER_*",
    "stoker.toml, or [tool.stoker] of pyproject.toml, nearest upwards from the working directory",
    "user file ~/.config/stoker/config.toml",
    "default",
)
"""The sources in words, the strongest first."""

_Values = dict[str, tuple[object, str]]


@dataclass(frozen=True, kw_only=True)
class Resolved:
    """The settings of a run and where each comes from."""

    settings: Settings
    origins: dict[str, str]
    """Origin in words, by field name."""


def resolve(
    command_line: Mapping[str, object] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Resolved:
    """The settings after all sources are merged.

    Args:
        command_line: Values by field name (``cpu_budget``) or option name (``cpu-budget``), as text or value. None
            means that the option was not given; ``"auto"`` chooses automatic.
        environ: The environment; this process's own by default.
        cwd: Where the search for the project's file starts; the working directory by default.

    Raises:
        ConfigError: A key is unknown, a value breaks its rule, or a file is not TOML.
    """
    environ = os.environ if environ is None else environ
    given = {name: value for name, value in (command_line or {}).items() if value is not None}
    sources = (
        _read_table(given, "the command line"),
        _read_environment(environ),
        _read_project(Path.cwd() if cwd is None else cwd),
        _read_user_file(environ),
    )
    merged: _Values = {}
    for source in reversed(sources):
        merged |= source
    origins = {key.field: merged[key.field][1] if key.field in merged else "default" for key in KEYS}
    try:
        settings = settings_of({field: value for field, (value, _) in merged.items()})
    except ConfigError as error:
        # Each value is right by itself: the two that do not fit together may come from two places.
        where = f" (from {origins['workers']} and {origins['max_workers']})"
        raise ConfigError(f"{error.args[0]}{where}", **error.fields) from error
    return Resolved(settings=settings, origins=origins)


def _read_environment(environ: Mapping[str, str]) -> _Values:
    """Settings of the ``STOKER_*`` variables; empty ones count as unset, as shells leave them."""
    by_variable = {key.variable: key for key in KEYS if key.variable not in INTERNAL_VARIABLES}
    # The word that people look for when something goes wrong under a scheduler.
    by_variable["STOKER_DISABLE"] = by_variable["STOKER_OFF"]
    values: _Values = {}
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or not environ[variable].strip():
            continue
        if variable in INTERNAL_VARIABLES or variable in OTHER_VARIABLES:
            continue
        key = by_variable.get(variable)
        if key is None:
            raise _unknown(variable, "the environment", by_variable)
        origin = f"environment {variable}"
        _add(values, key, environ[variable], origin)
    return values


def _read_project(cwd: Path) -> _Values:
    """Settings of the nearest file that speaks of stoker; a ``pyproject.toml`` without our table is passed over."""
    for folder in (cwd.absolute(), *cwd.absolute().parents):
        own_file, project_file = folder / "stoker.toml", folder / "pyproject.toml"
        if os.path.isfile(own_file):  # unlike Path.is_file, silent about folders that may not be searched
            return _read_table(_load(own_file), str(own_file))
        if os.path.isfile(project_file):
            tool = _table(_load(project_file).get("tool", {}), "tool", str(project_file))
            if "stoker" in tool:
                return _read_table(
                    _table(tool["stoker"], "tool.stoker", str(project_file)), f"{project_file} [tool.stoker]"
                )
    return {}


def _read_user_file(environ: Mapping[str, str]) -> _Values:
    """Settings of the user's own file, where there is a home and a file."""
    base = environ.get("XDG_CONFIG_HOME") or (os.path.join(environ["HOME"], ".config") if environ.get("HOME") else "")
    path = Path(base, "stoker", "config.toml")
    # XDG says that relative paths are to be ignored.
    return _read_table(_load(path), str(path)) if path.is_absolute() and os.path.isfile(path) else {}


def _read_table(table: Mapping[str, object], origin: str) -> _Values:
    """Settings of one table, whose keys may be option names or field names."""
    by_name = {key.name: key for key in KEYS} | {key.field: key for key in KEYS}
    # `slot_memory` for `slot-memory`: the hyphen is not a trap.
    by_name |= {key.name.replace("-", "_"): key for key in KEYS}
    values: _Values = {}
    for name, raw in _flat(table).items():
        key = by_name.get(name)
        if key is None:
            raise _unknown(name, origin, [key.name for key in KEYS])
        _add(values, key, raw, origin)
    return values


def _flat(table: Mapping[str, object]) -> dict[str, object]:
    """The table with ``[cache]`` in it spelt out: ``size`` is ``cache-size``, ``on`` and ``directory`` ``cache``."""
    flat = dict(table)
    if isinstance(flat.get("cache"), bool):
        flat["cache"] = "on" if flat["cache"] else "off"
    if not isinstance(flat.get("cache"), dict):
        return flat
    nested = dict(cast("dict[str, object]", flat.pop("cache")))
    directory = nested.pop("directory", "on")
    flat["cache"] = directory if nested.pop("on", True) is True else "off"
    if isinstance(nested.get("rules"), list):
        nested["rules"] = "; ".join(map(str, cast("list[object]", nested["rules"])))
    return flat | {f"cache-{name}": value for name, value in nested.items()}


def _add(values: _Values, key: Key, raw: object, origin: str) -> None:
    value = key.parse(raw, origin)
    if key.field in values and values[key.field][0] != value:
        raise ConfigError(
            f"`{key.name}` must be given once, got {values[key.field][0]!r} from {values[key.field][1]} "
            f"and {value!r} from {origin}; remove one of them",
            key=key.name,
            origin=origin,
        )
    values[key.field] = (value, origin)


def _unknown(name: str, origin: str, known: Iterable[str]) -> ConfigError:
    # Without the prefix that all variables share, or everything would look alike.
    names = {full.removeprefix(PREFIX): full for full in sorted(known)}
    close = difflib.get_close_matches(name.removeprefix(PREFIX), names, n=1)
    hint = f"did you mean `{names[close[0]]}`?" if close else f"known are {', '.join(names.values())}"
    return ConfigError(f"`{name}` is not a setting of stoker (in {origin}); {hint}", key=name, origin=origin)


def _load(path: Path) -> dict[str, object]:
    """The TOML file's content; unreadable files are errors, since ignoring one would ignore a choice."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(
            f"`{path}` must be readable TOML: {error}; correct the file or move it away", origin=str(path)
        ) from error


def _table(value: object, name: str, origin: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ConfigError(f"`{name}` must be a table, got {value!r} from {origin}", key=name, origin=origin)
    return cast("dict[str, object]", value)

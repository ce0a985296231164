"""Where settings come from: command line, environment, the project's file, the user's file, defaults, in this order.

The first source that names a key wins, and its origin is kept for `stoker config show`. An unknown key is an error
with a suggestion: a misspelt setting that is silently ignored costs a day.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from stoker.core.errors import ConfigError
from stoker.core.settings import Key, Settings, keys_of, parts_of

PREFIX = "STOKER_"
PRECEDENCE = (
    "command line",
    "environment STOKER_*",
    "stoker.toml, or [tool.stoker] of pyproject.toml, nearest upwards from the working directory",
    "user file ~/.config/stoker/config.toml",
    "default",
)
"""The sources in words, the strongest first."""

_NEAR = 0.85
"""From this similarity (difflib's) on, a name counts as one of ours misspelt: a letter missing or too many."""

_Values = dict[str, tuple[object, str]]
S = TypeVar("S", bound=Settings)


@dataclass(frozen=True, kw_only=True)
class Resolved(Generic[S]):
    """Settings and where each comes from."""

    settings: S
    origins: dict[str, str]
    """Origin in words, by the setting's name among all."""


def resolve(
    kind: type[S],
    command_line: Mapping[str, object] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Resolved[S]:
    """The settings after all sources are merged.

    Args:
        kind: Which settings. With those of one capability, names that are not similar to its own are skipped: they may
            belong to another one.
        command_line: Values by field name (``cpu_budget``) or option name (``cpu-budget``), as text or value. None
            means that the option was not given; ``"auto"`` selects automatic.
        environ: The environment; this process's own by default.
        cwd: Where the search for the project's file starts; the working directory by default.

    Raises:
        ConfigError: A key is unknown, a value breaks its rule, or a file is not TOML.
    """
    environ = os.environ if environ is None else environ
    given = {name: value for name, value in (command_line or {}).items() if value is not None}
    reader = _Reader(kind)
    sources = (
        reader.table(given, "the command line"),
        reader.environment(environ),
        reader.project(Path.cwd() if cwd is None else cwd),
        reader.user_file(environ),
    )
    merged: _Values = {}
    for source in reversed(sources):
        merged |= source
    origins = {key.field: merged[key.field][1] if key.field in merged else "default" for key in keys_of(kind)}
    try:
        settings = kind.of(**{field: value for field, (value, _) in merged.items()})
    except ConfigError as error:
        # Each value alone is valid: the two that conflict may come from two sources.
        where = " and ".join(origins[field] for field in cast("tuple[str, ...]", error.fields.get("together", ())))
        raise ConfigError(f"{error.args[0]} (from {where})", **error.fields) from error
    return Resolved(settings=settings, origins=origins)


class _Reader:
    """Reads the settings of one kind from each source."""

    def __init__(self, kind: type[Settings]) -> None:
        self._kind, self._keys = kind, keys_of(kind)
        self._foreign = {variable for part in parts_of(kind) for variable in part.variables}
        # `slot_memory` for `slot-memory`: the hyphen is not a trap.
        self._by_name = {name: key for key in self._keys for name in (key.name, key.field, key.name.replace("-", "_"))}

    def environment(self, environ: Mapping[str, str]) -> _Values:
        """Settings of the ``STOKER_*`` variables; empty ones count as unset, as shells leave them."""
        by_variable = {key.variable: key for key in self._keys if key.variable not in self._foreign}
        by_variable |= {key.option.also: key for key in self._keys if key.option.also}
        values: _Values = {}
        for variable in sorted(environ):
            if not variable.startswith(PREFIX) or not environ[variable].strip() or variable in self._foreign:
                continue
            if key := by_variable.get(variable):
                _add(values, key, environ[variable], f"environment {variable}")
            else:
                self._refuse(variable, "the environment", by_variable)
        return values

    def project(self, cwd: Path) -> _Values:
        """Settings of the nearest file for stoker; a ``pyproject.toml`` without our table is skipped."""
        for folder in (cwd.absolute(), *cwd.absolute().parents):
            own_file, project_file = folder / "stoker.toml", folder / "pyproject.toml"
            if os.path.isfile(own_file):  # unlike Path.is_file, silent about folders that may not be searched
                return self.table(_load(own_file), str(own_file))
            if os.path.isfile(project_file):
                tool = _table(_load(project_file).get("tool", {}), "tool", str(project_file))
                if "stoker" in tool:
                    own = _table(tool["stoker"], "tool.stoker", str(project_file))
                    return self.table(own, f"{project_file} [tool.stoker]")
        return {}

    def user_file(self, environ: Mapping[str, str]) -> _Values:
        """Settings of the user's own file, where there is a home and a file."""
        home = environ.get("HOME")
        base = environ.get("XDG_CONFIG_HOME") or (os.path.join(home, ".config") if home else "")
        path = Path(base, "stoker", "config.toml")
        # XDG says that relative paths are to be ignored.
        return self.table(_load(path), str(path)) if path.is_absolute() and os.path.isfile(path) else {}

    def table(self, table: Mapping[str, object], origin: str) -> _Values:
        """Settings of one table, whose keys may be option names or field names."""
        values: _Values = {}
        for name, raw in self._flat(table).items():
            if key := self._by_name.get(name):
                _add(values, key, raw, origin)
            else:
                self._refuse(name, origin, [key.name for key in self._keys])
        return values

    def _flat(self, table: Mapping[str, object]) -> dict[str, object]:
        """The table with those nested under a capability's prefix flattened; a switch there is its ``on``."""
        flat = dict(table)
        for part in parts_of(self._kind):
            value = flat.get(part.prefix) if part.prefix else None
            if isinstance(value, bool | dict):
                del flat[part.prefix]
                nested: dict[str, object] = {"on": value} if isinstance(value, bool) else cast("Any", value)
                flat |= part.spell_out(nested)
        return flat

    def _refuse(self, name: str, origin: str, known: Iterable[str]) -> None:
        """Refuses an unknown name, unless it may be a setting of another capability."""
        bare = name.removeprefix(PREFIX).lower().replace("-", "_")
        if bare.startswith(self._kind.prefix) or difflib.get_close_matches(bare, self._by_name, 1, _NEAR):
            raise _unknown(name, origin, known)


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

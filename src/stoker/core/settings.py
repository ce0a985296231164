"""How a capability declares its settings: a frozen struct that checks itself, each field with its rule and its help.

All else follows from the field: option of `stoker run` and its help, environment variable, key in files, row of
`stoker config show`, and the JSON that passes settings between processes. Which settings exist is not defined here,
nor where values come from (``core/settings_sources.py``).
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec

from stoker.core.errors import ConfigError
from stoker.core.units import parse_bytes, parse_seconds

LEAST_BYTES = 1 << 20
"""Least size of memory or disk to use: no batch, page or process fits into less, and `5` is meant as `5GiB`."""


class ArgumentError(ConfigError, ValueError):
    """A setting that a program passes as an argument of a function has a wrong value."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """How people see a field, given in its type: ``workers: Annotated[int | None, count("N", "…", least=0)]``."""

    form: str
    """How `--help` writes a value; empty for a switch, ``[=DIR]`` for a value that may be left out."""
    text: str
    """What `--help` says about it."""
    rule: str
    """What a value must be, as the end of "must be ..."."""
    accepts: Callable[[Any], bool]
    """Whether a value follows the rule; may raise ValueError with what is wrong."""
    read: Callable[[str], object] = str
    """Parses a text; raises ValueError for one without meaning."""
    field: str = ""
    """The field's name among all settings, if not its own name after the struct's prefix."""
    also: str = ""
    """A second environment variable."""
    is_path: bool = False
    """Whether a value is a path."""


def count(form: str, text: str, *, least: int, rule: str = "") -> Option:
    """A whole number."""
    rule = rule or f"a whole number of at least {least} or `auto`"
    return Option(form=form, text=text, rule=rule, read=int, accepts=functools.partial(_is_count, least=least))


def number(
    form: str, text: str, rule: str, *, least: float, most: float = math.inf, read: Callable[[str], float] = float
) -> Option:
    """A finite number."""
    return Option(
        form=form, text=text, rule=rule, read=read, accepts=functools.partial(_is_number, least=least, most=most)
    )


duration = functools.partial(number, "TIME", read=parse_seconds)
"""A time (seconds)."""


def memory(text: str, field: str = "") -> Option:
    """A size of memory or disk (bytes)."""
    rule = "a size of at least 1 MiB, such as `2GiB`, or `auto`"
    accepts = functools.partial(_is_count, least=LEAST_BYTES)
    return Option(form="SIZE", text=text, rule=rule, read=parse_bytes, accepts=accepts, field=field)


def choice(text: str, form: str = "") -> Option:
    """One of the words of the field's ``Literal``."""
    return Option(form=form, text=text, rule="", accepts=bool)


def switch(text: str, also: str = "") -> Option:
    """On or off."""
    rule = "a switch (1, 0, true or false)"
    return Option(form="", text=text, rule=rule, read=_read_switch, accepts=_is_switch, also=also)


def path(form: str, text: str) -> Option:
    """A path, as people write it."""
    return Option(form=form, text=text, rule="a path or `auto`", accepts=is_text, is_path=True)


def is_text(value: object) -> bool:
    """Whether a value can be a path."""
    text = os.fspath(cast("str", value)) if isinstance(value, str | os.PathLike) else ""
    return text != "" and "\0" not in text


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_number(value: object, least: float, most: float) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return math.isfinite(value) and least <= value <= most


def _is_switch(value: object) -> bool:
    return isinstance(value, bool)


def _read_switch(text: str) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if text.lower() not in words:
        raise ValueError(text)
    return words[text.lower()]


@dataclass(frozen=True, kw_only=True)
class Key:
    """A setting as people write it."""

    path: tuple[str, ...]
    """Attributes that lead to its value, from settings of the kind passed to :func:`keys_of`."""
    field: str
    """Its name among all settings, ``cache_size_bytes``: as ``stoker.feeding`` takes it and records keep it."""
    option: Option
    optional: bool
    """Whether ``auto`` (None) is a value."""

    @property
    def name(self) -> str:
        """Name in files and, after ``--``, on the command line: the field without its unit."""
        return re.sub(r"_(bytes|s)$", "", self.field).replace("_", "-")

    @property
    def variable(self) -> str:
        """Name of the environment variable."""
        return "STOKER_" + self.name.upper().replace("-", "_")

    def of(self, settings: Settings) -> Any:
        """The value in some settings."""
        return functools.reduce(getattr, self.path, cast("Any", settings))

    def parse(self, raw: object, origin: str) -> object:
        """The checked value of ``raw``: text from anywhere, or a number or boolean from a file.

        Raises:
            ConfigError: It breaks the rule; the message names the origin.
        """
        value = raw
        if isinstance(raw, str):
            if self.optional and raw.strip().lower() == "auto":
                return None
            try:
                value = self.option.read(raw.strip())
            except ValueError as error:
                raise self._refusal(raw, origin, str(error)) from error
        self.check(value, origin)
        return value

    def check(self, value: object, origin: str = "") -> None:
        """Refuses a value that breaks the rule.

        Raises:
            ConfigError: With the rule, the value and its origin.
        """
        try:
            if self.optional if value is None else self.option.accepts(value):
                return
        except ValueError as error:
            raise self._refusal(value, origin, str(error)) from error
        raise self._refusal(value, origin, "")

    def _refusal(self, value: object, origin: str, detail: str) -> ConfigError:
        source = f" from {origin}; change it there" if origin else ""
        hint = f" ({detail})" if detail.startswith("`") else ""
        message = f"`{self.name}` must be {self.option.rule}, got {value!r}{hint}{source}"
        return ConfigError(message, key=self.name, origin=origin)


class Handed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Data that one process passes to another, as JSON by the names of fields."""

    def to_json(self) -> str:
        """One line that :meth:`from_json` of another process reads back."""
        return json.dumps(msgspec.to_builtins(self, enc_hook=os.fspath))  # unlike msgspec, it takes any path

    @classmethod
    def from_json(cls, text: str) -> Self:
        """What :meth:`to_json` wrote.

        Raises:
            ConfigError: The text was not written by this version of stoker: an unknown field may ask for something
                that this version does not do.
        """
        try:
            return msgspec.convert(json.loads(text), cls)
        except (ValueError, msgspec.MsgspecError) as error:
            raise ConfigError(f"`settings` handed to a child process are not readable: {error}") from error


class Settings(Handed, frozen=True, kw_only=True):
    """Settings of a capability, or of several: a field that is settings itself is part of these.

    Raises:
        ConfigError: At construction, for a value that breaks its key's rule.
    """

    prefix: ClassVar[str] = ""
    """Prefix of the fields' names, such as ``cache``; files may have a table of that name."""
    variables: ClassVar[tuple[str, ...]] = ()
    """Environment variables with stoker's prefix that are valid without being settings."""

    def __post_init__(self) -> None:
        """Checks each value; an override also checks them against each other."""
        for key in keys_of(type(self)):
            if len(key.path) == 1:
                key.check(getattr(self, key.path[0]))

    @classmethod
    def of(cls, **chosen: Any) -> Self:
        """Settings with these values, by their names among all settings, and defaults for the rest.

        Raises:
            TypeError: There is no such setting.
            ConfigError: A value breaks its rule.
        """
        return cls().but(**chosen)

    def but(self, **chosen: Any) -> Self:
        """These settings with other values, named as for :meth:`of`."""
        paths = {key.field: key.path for key in keys_of(type(self))}
        if unknown := chosen.keys() - paths.keys():
            raise TypeError(f"`{min(unknown)}` is not a setting; settings are {', '.join(paths)}")
        return _replaced(self, {paths[name]: value for name, value in chosen.items()})

    def flat(self) -> dict[str, Any]:
        """All values, by their names among all settings."""
        return {key.field: key.of(self) for key in keys_of(type(self))}

    @classmethod
    def spell_out(cls, table: dict[str, object]) -> dict[str, object]:
        """The values of a file's table that is named like the prefix, by the names of keys."""
        return {f"{cls.prefix}-{name}": value for name, value in table.items()}


_S = TypeVar("_S", bound=Settings)


def _replaced(settings: _S, values: dict[tuple[str, ...], Any]) -> _S:
    own = {path[0]: value for path, value in values.items() if len(path) == 1}
    for name in dict.fromkeys(path[0] for path in values if len(path) > 1):
        inner = {path[1:]: value for path, value in values.items() if path[0] == name}
        own[name] = _replaced(getattr(settings, name), inner)
    return msgspec.structs.replace(settings, **own)


def parts_of(kind: type[Settings]) -> Iterator[type[Settings]]:
    """A struct of settings and those nested in it, outer ones first."""
    yield kind
    for hint in _hints(kind).values():
        if isinstance(hint, type) and issubclass(hint, Settings):
            yield from parts_of(hint)


@functools.cache
def keys_of(kind: type[Settings]) -> tuple[Key, ...]:
    """The keys of settings and of those nested in them, in the order of the fields, which is the order shown."""
    return tuple(_keys(kind, ()))


def _keys(kind: type[Settings], above: tuple[str, ...]) -> Iterator[Key]:
    for name, hint in _hints(kind).items():
        if isinstance(hint, type) and issubclass(hint, Settings):
            yield from _keys(hint, (*above, name))
        elif get_origin(hint) is Annotated:
            value, option = get_args(hint)
            full = option.field or (f"{kind.prefix}_{name}" if kind.prefix else name)
            optional = type(None) in get_args(value)
            yield Key(path=(*above, name), field=full, option=_with_words(option, value), optional=optional)


def _with_words(option: Option, value: Any) -> Option:
    words = [word for part in (value, *get_args(value)) if get_origin(part) is Literal for word in get_args(part)]
    rule = "one of " + ", ".join(f"`{word}`" for word in words)
    form = option.form or "|".join(words)
    return replace(option, form=form, rule=rule, accepts=words.__contains__) if words else option


def _hints(kind: type[Settings]) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    return {name: hints[name] for name in kind.__struct_fields__}

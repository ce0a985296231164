"""The user's hardware as a TOML file, which only needs to name what differs from the study's testbed."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from stoker.core.errors import ConfigError
from stoker.perf.hardware import PAPER_TESTBED, VALUES, Basis, Hardware, Provenance, Resource

_TABLE = "efficiency"


def read_hardware(path: Path) -> Hardware:
    """The testbed with the file's values.

    Raises:
        ConfigError: the file cannot be read, or a value breaks its rule.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"`{path}` must be a file that can be read: {error.strerror}") from None
    except ValueError as error:  # invalid TOML, or not UTF-8
        raise ConfigError(f"`{path}` must be TOML: {error}") from None
    source = Provenance(Basis.GIVEN, path.name)
    try:
        efficiency = content.pop(_TABLE, None)
        found = PAPER_TESTBED.with_values(source, **_numbers(content, VALUES))
        if efficiency is not None:
            found = _with_efficiency(found, efficiency, source)
    except ValueError as error:
        raise ConfigError(f"{error} ({path})") from None
    return replace(found, name=path.name)


def _with_efficiency(hardware: Hardware, given: object, source: Provenance) -> Hardware:
    if isinstance(given, Mapping):
        names = tuple(str(resource) for resource in Resource)
        numbers = _numbers(cast("Mapping[str, object]", given), names)
    else:
        numbers = dict.fromkeys(map(str, Resource), _number(_TABLE, given))
    shares = {Resource(name): share for name, share in numbers.items()}
    sources = {**hardware.sources, _TABLE: source}
    return replace(hardware, efficiency={**hardware.efficiency, **shares}, sources=sources)


def _numbers(content: Mapping[str, object], known: tuple[str, ...]) -> dict[str, float]:
    unknown = next((name for name in content if name not in known), None)
    if unknown is not None:
        raise ValueError(f"`{unknown}` must be one of {', '.join(known)}")
    return {name: _number(name, value) for name, value in content.items()}


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"`{name}` must be a number, got {value!r}")
    return value

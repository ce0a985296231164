"""The settings of the cache: declared here once, and passed whole to everything that reads through it.

A field defines its option, variable and key in files, the argument of ``stoker.cache.install`` and of the filesystem,
and what child processes receive.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, cast

from stoker.cache.policies import Policy, Rule, Verify
from stoker.cache.rules_text import FORM, is_rules, rules_of
from stoker.core.errors import ConfigError
from stoker.core.settings import (
    ArgumentError,
    Option,
    Settings,
    choice,
    duration,
    is_text,
    keys_of,
    memory,
    path,
    switch,
)


def _place(text: str) -> str:
    words = {"1": "on", "true": "on", "yes": "on", "0": "off", "false": "off", "no": "off"}
    return words.get(text.lower(), text.lower() if text.lower() in ("on", "off") else text)


def is_ring(value: object) -> bool:
    """Whether a value has a form by which clusters are named."""
    return isinstance(value, str) and value.startswith(("static:", "file:///", "file://localhost/", "etcd://"))


_RING = "a ring such as `static:a:7070,b:7070`, `file:///ring.json` or `etcd://host:2379/cluster`, or `auto`"
_JOIN = "cluster to ask before the store, such as static:a:7070,b:7070"
_SECRET = "secret of that cluster (default: the file `secret` in the cache's directory)"
_TLS = "certificate authorities of that cluster's workers, which are then reached over TLS"
_LOST = "silence after which a worker of that cluster counts as lost (default 0.9s)"


class ClusterSettings(Settings, frozen=True, kw_only=True):
    """The cluster whose workers are asked before the store; none if ``join`` is None."""

    prefix: ClassVar[str] = "cache"

    join: Annotated[str | None, Option(form="RING", text=_JOIN, rule=_RING, accepts=is_ring)] = None
    secret_file: Annotated[str | None, path("FILE", _SECRET)] = None
    tls_ca: Annotated[str | None, path("FILE", _TLS)] = None
    timeout_s: Annotated[float, duration(_LOST, "a time from `0.05s` to `30s`", least=0.05, most=30.0)] = 0.9
    """A lost worker costs one silence of less than a second; workers that fetch say so more often."""


_READ = "read remote stores (s3://, gs://, ...) through the data cache, kept in DIR"
_RULES = "how stale paths may be, such as 's3://data/* immutable; https://* 5min'"
_VERIFY = "verify checksums of cached bytes `always`, or on `first-touch` by a process"
_EVICTION = "which pages to evict: `epoch` (training), `sieve`, `s3fifo` or `lru` (serving)"


class CacheSettings(Settings, frozen=True, kw_only=True):
    """Where the cache is and how it behaves."""

    prefix: ClassVar[str] = "cache"
    variables: ClassVar[tuple[str, ...]] = ("STOKER_CACHE_DIR", "STOKER_CACHE_INSTALL", "STOKER_CACHE_RUN")
    """Where the cache keeps its pages, and what its processes tell their children."""

    directory: Annotated[
        str,
        Option(
            form="[=DIR]", text=_READ, rule="`on`, `off` or a directory", read=_place, accepts=is_text, field="cache"
        ),
    ] = "off"
    required: Annotated[bool, switch("fail if the data cache cannot be used, instead of running without it")] = False
    limit_bytes: Annotated[
        int | None, memory("largest size of the data cache on disk, such as 50GB", field="cache_size_bytes")
    ] = None
    """None: the size last stored in the directory, else the smaller of 50 GB and a fifth of the free space."""
    rules: Annotated[str | tuple[Rule, ...] | None, Option(form="RULES", text=_RULES, rule=FORM, accepts=is_rules)] = (
        None
    )
    """A text, before the cache's own rules; or all rules."""
    verify: Annotated[Verify, choice(_VERIFY, form="WHEN")] = "always"
    eviction: Annotated[Policy | None, choice(_EVICTION, form="POLICY")] = None
    """None: the policy last stored in the directory, else ``epoch``."""
    cluster: ClusterSettings = ClusterSettings()

    @property
    def all_rules(self) -> tuple[Rule, ...]:
        """The rules of paths; the first that fits counts."""
        return self.rules if isinstance(self.rules, tuple) else rules_of(self.rules)

    def settled(self, own: Callable[[], Path]) -> CacheSettings:
        """The settings with whole paths, so that they mean the same in every process.

        Args:
            own: says which directory the user's own is; asked where none is named.
        """
        place = own() if self.directory in ("on", "off") else Path(self.directory)
        files = {key.field: _whole(key.of(self)) for key in keys_of(type(self)) if key.option.is_path}
        return self.but(**(files | {"cache": _whole(str(place))}))

    def with_arguments(self, arguments: Mapping[str, Any]) -> CacheSettings:
        """These settings with what a program chose by :data:`ARGUMENTS`: None leaves a value, and paths may be objects.

        Raises:
            TypeError: there is no such argument.
            ArgumentError: one breaks its rule.
        """
        if unknown := arguments.keys() - ARGUMENTS.keys():
            raise TypeError(f"`{min(unknown)}` must be one of {', '.join(ARGUMENTS)}")
        chosen = {name: _plain(value) for name, value in arguments.items() if value is not None}
        for name, value in chosen.items():
            try:
                ARGUMENTS[name].check(value)
            except ConfigError as error:
                raise ArgumentError(error.args[0].replace(f"`{ARGUMENTS[name].name}`", f"`{name}`", 1)) from None
        return self.but(**{ARGUMENTS[name].field: value for name, value in chosen.items()})

    @classmethod
    def spell_out(cls, table: dict[str, object]) -> dict[str, object]:
        """Keys of ``[cache]``: ``size`` is ``cache-size``, ``on`` and ``directory`` are ``cache``."""
        nested = dict(table)
        directory = nested.pop("directory", "on")
        place = directory if nested.pop("on", True) is True else "off"
        if isinstance(nested.get("rules"), list):
            nested["rules"] = "; ".join(map(str, cast("list[object]", nested["rules"])))
        return {"cache": place} | super().spell_out(nested)


ARGUMENTS = {key.path[-1]: key for key in keys_of(CacheSettings) if key.path != ("required",)}
"""What ``stoker.cache.install`` and the filesystem take, and the setting that each is; the rest is for runs alone."""


def _plain(value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(cast("os.PathLike[str]", value))
    return tuple(cast("list[Rule]", value)) if isinstance(value, list) else value


def _whole(path: str | None) -> str | None:
    return None if path is None else str(Path(path).expanduser().absolute())

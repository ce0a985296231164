"""The settings of a run: one frozen value that checks itself, and the names and texts of its keys.

Where values come from and which wins is ``core/config_sources.py``; nothing here reads a file or the environment.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import msgspec

from stoker.core.cache_rules import FORM, checked_rules, is_rules
from stoker.core.errors import ConfigError
from stoker.core.replay import RULE, is_replay
from stoker.core.units import parse_bytes, parse_seconds

LEAST_BATCHES, MIN_PAIRS = 120, 5
"""Of a comparison with plain python, and pairs of rounds in it: what :mod:`stoker.records.versus` needs for a ratio."""
CACHE_TIMEOUT_S = 0.9
"""Of a data cache: a lost worker costs one silence of less than a second; workers that fetch say so more often."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a person may choose about a run; None means that stoker finds the value itself.

    Raises:
        ConfigError: At construction, for a value that breaks its key's rule.
    """

    workers: int | None = None
    """Data workers of each loader (a count); None scales with the job, 0 loads in the training process."""
    max_workers: int | None = None
    """Most data workers of the process at any time (a count)."""
    cpu_budget: float | None = None
    """CPU cores that all data workers together may keep busy; None takes what the host grants."""
    worker_memory_bytes: int | None = None
    """Private memory that a data worker may have; it is replaced before it has more (bytes)."""
    slot_memory_bytes: int | None = None
    """Memory that the slots of one loader may use (bytes)."""
    random: Literal["keep", "sample"] = "keep"
    """``keep`` the program's own random streams where they matter, or seed each ``sample`` by itself."""
    tier: Literal["auto", "pinned"] = "auto"
    """How loaders are served: found for each, or ``pinned``: as declared, like torch's own workers."""
    cut: Literal["exact", "always", "off"] = "exact"
    """Moves what depends on the batch alone from steps to data workers: where it pays, all of it, or nothing."""
    cache: str = "off"
    """Reads of remote stores go through the data cache: ``off``, ``on``, or the directory to keep it in."""
    cache_required: bool = False
    """A cache whose directory cannot be made or written ends the run; else the run goes on without it."""
    cache_size_bytes: int | None = None
    """Most bytes that the data cache takes on disk; None takes a part of what is free."""
    cache_rules: str | None = None
    """How stale paths may be, and which are cached (:mod:`stoker.core.cache_rules`), before the cache's own rules."""
    cache_verify: Literal["always", "first-touch"] = "always"
    """When cached bytes are compared with their checksums: at every read, or when a process first reads them."""
    cache_eviction: Literal["epoch", "sieve", "s3fifo", "lru"] | None = None
    """Which pages go first from a full cache; None: what its directory has noted, else by epochs, for training."""
    cache_join: str | None = None
    """Cluster whose workers are asked before the store (``static:a:7070,b:7070``); None reads alone."""
    cache_secret_file: str | None = None
    """Secret of that cluster (a path); None takes the file ``secret`` of the cache's directory, if it is there."""
    cache_tls_ca: str | None = None
    """Certificates that vouch for the cluster's workers (a path), which are then reached by TLS; None: unencrypted."""
    cache_timeout_s: float = CACHE_TIMEOUT_S
    """Silence after which one of the cluster's workers counts as lost (seconds)."""
    versus_plain: int | None = None
    """Batches of each loader in which torch's own workers and ours take turns, to be compared (a count)."""
    off: bool = False
    """Leaves every loader to torch, as without stoker."""
    quiet: bool = False
    """Prints nothing but errors."""
    run_dir: str | None = None
    """Folder that receives the records of the run (a path); None makes one under ``stoker-runs``."""
    on_bad_sample: Literal["raise", "skip", "replace"] = "raise"
    """What to do with a sample that killed its data worker twice."""
    bad_sample_cap: int = 16
    """Most samples that may be skipped or replaced before the run stops (a count)."""
    stall_timeout_s: float = 60.0
    """Silence after which a data worker counts as stuck (seconds)."""
    replay: str | None = None
    """The one sample to make again in the training process, as an error message named it."""

    def __post_init__(self) -> None:
        """Checks each value, then the values together."""
        for key in KEYS:
            key.check(getattr(self, key.field))
        if self.workers is not None and self.max_workers is not None and self.workers > self.max_workers:
            raise ConfigError(
                f"`workers` must be at most `max-workers`, got {self.workers} and {self.max_workers}; "
                "lower the one or raise the other",
                key="workers",
            )

    def to_json(self) -> str:
        """One line of JSON that :meth:`from_json` of a child process reads back."""
        return json.dumps(msgspec.to_builtins(self))  # unlike msgspec, it takes any path

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """The settings that :meth:`to_json` wrote.

        Raises:
            ConfigError: The text was not written by this version of stoker.
        """
        try:
            return msgspec.convert(json.loads(text), cls)
        except (ValueError, msgspec.MsgspecError) as error:
            raise ConfigError(f"`settings` handed to a child process are not readable: {error}") from error


@dataclass(frozen=True, kw_only=True)
class Key:
    """A setting as people write it: its name, its rule, and how text becomes a value."""

    field: str
    """Attribute of :class:`Settings`."""
    name: str
    """Name in files and, after ``--``, on the command line; the environment says it in capitals after ``STOKER_``."""
    rule: str
    """What a value must be, as the end of "must be ..."."""
    read: Callable[[str], object]
    """Value of a text; raises ValueError for a text that means nothing."""
    accepts: Callable[[Any], bool]
    """Whether a value of the right kind keeps the rule."""
    optional: bool
    """Whether ``auto`` (None) is a value."""

    @property
    def variable(self) -> str:
        """Name of the environment variable."""
        return "STOKER_" + self.name.upper().replace("-", "_")

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
                value = self.read(raw.strip())
            except ValueError as error:
                raise self._refusal(raw, origin, str(error)) from error
        self.check(value, origin)
        return value

    def check(self, value: object, origin: str = "") -> None:
        """Refuses a value that breaks the rule.

        Raises:
            ConfigError: With the rule, the value and its origin.
        """
        if (value is None and self.optional) or (value is not None and self.accepts(value)):
            return
        raise self._refusal(value, origin, "")

    def _refusal(self, value: object, origin: str, detail: str) -> ConfigError:
        source = f" from {origin}; change it there" if origin else ""
        hint = f" ({detail})" if detail.startswith("`") else ""
        message = f"`{self.name}` must be {self.rule}, got {value!r}{hint}{source}"
        return ConfigError(message, key=self.name, origin=origin)


def _count(field: str, name: str, *, least: int, optional: bool = True) -> Key:
    def accepts(value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and value >= least

    rule = f"a whole number of at least {least}" + (" or `auto`" if optional else "")
    return Key(field=field, name=name, rule=rule, read=int, accepts=accepts, optional=optional)


def _at_least(
    least: float, field: str, name: str, rule: str, read: Callable[[str], float], *, optional: bool = True
) -> Key:
    def accepts(value: object) -> bool:
        return (
            isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= least
        )

    return Key(field=field, name=name, rule=rule, read=read, accepts=accepts, optional=optional)


def _memory(field: str, name: str) -> Key:
    def accepts(value: object) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and value >= LEAST_BYTES

    rule = "a size of at least 1 MiB, such as `2GiB`, or `auto`"
    return Key(field=field, name=name, rule=rule, read=parse_bytes, accepts=accepts, optional=True)


LEAST_BYTES = 1 << 20
"""Of any memory or disk that is to be used: no batch, page or process fits into less, and `5` is meant as `5GiB`."""
LEAST_CORES = 0.1
LEAST_STALL_S = 0.1
"""Less is within what a busy machine makes any process wait for a core."""


def _choice(field: str, name: str, *choices: str) -> Key:
    rule = "one of " + ", ".join(f"`{choice}`" for choice in choices)
    return Key(field=field, name=name, rule=rule, read=str, accepts=lambda value: value in choices, optional=False)


def _switch(field: str, name: str) -> Key:
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}

    def read(text: str) -> bool:
        if text.lower() not in words:
            raise ValueError(text)
        return words[text.lower()]

    rule = "a switch (1, 0, true or false)"
    return Key(field=field, name=name, rule=rule, read=read, accepts=lambda v: isinstance(v, bool), optional=False)


def _text(field: str, name: str, rule: str) -> Key:
    def accepts(value: object) -> bool:
        return isinstance(value, str) and value != "" and "\0" not in value

    return Key(field=field, name=name, rule=rule, read=str, accepts=accepts, optional=True)


def _read_cache(text: str) -> str:
    words = {"1": "on", "true": "on", "yes": "on", "0": "off", "false": "off", "no": "off"}
    return words.get(text.lower(), text.lower() if text.lower() in ("on", "off") else text)


KEYS: tuple[Key, ...] = (
    _count("workers", "workers", least=0),
    _count("max_workers", "max-workers", least=1),
    _at_least(LEAST_CORES, "cpu_budget", "cpu-budget", "a number of cores of at least 0.1, or `auto`", float),
    _memory("worker_memory_bytes", "worker-memory"),
    _memory("slot_memory_bytes", "slot-memory"),
    _choice("random", "random", "keep", "sample"),
    _choice("tier", "tier", "auto", "pinned"),
    _choice("cut", "cut", "exact", "always", "off"),
    Key(
        field="cache",
        name="cache",
        rule="`on`, `off` or a directory",
        read=_read_cache,
        accepts=lambda value: isinstance(value, str) and value != "" and "\0" not in value,
        optional=False,
    ),
    _switch("cache_required", "cache-required"),
    _memory("cache_size_bytes", "cache-size"),
    Key(field="cache_rules", name="cache-rules", rule=FORM, read=checked_rules, accepts=is_rules, optional=True),
    _choice("cache_verify", "cache-verify", "always", "first-touch"),
    replace(_choice("cache_eviction", "cache-eviction", "epoch", "sieve", "s3fifo", "lru"), optional=True),
    Key(
        field="cache_join",
        name="cache-join",
        rule="a ring such as `static:a:7070,b:7070`, `file:///ring.json` or `etcd://host:2379/cluster`, or `auto`",
        read=str,
        accepts=lambda value: isinstance(value, str) and value.startswith(("static:", "file:///", "etcd://")),
        optional=True,
    ),
    _text("cache_secret_file", "cache-secret-file", "a path or `auto`"),
    _text("cache_tls_ca", "cache-tls-ca", "a path or `auto`"),
    Key(
        field="cache_timeout_s",
        name="cache-timeout",
        rule="a time from `0.05s` to `30s`",
        read=parse_seconds,
        accepts=lambda value: isinstance(value, int | float) and 0.05 <= value <= 30.0,
        optional=False,
    ),
    Key(
        field="versus_plain",
        name="versus-plain",
        rule=f"a whole number of batches of at least {LEAST_BATCHES}, for {MIN_PAIRS} pairs of rounds that count",
        read=int,
        accepts=lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= LEAST_BATCHES,
        optional=True,
    ),
    _switch("off", "off"),
    _switch("quiet", "quiet"),
    _text("run_dir", "run-dir", "a path or `auto`"),
    _choice("on_bad_sample", "on-bad-sample", "raise", "skip", "replace"),
    _count("bad_sample_cap", "bad-sample-cap", least=0, optional=False),
    _at_least(
        LEAST_STALL_S,
        "stall_timeout_s",
        "stall-timeout",
        "a time of at least `0.1s`, such as `60s`",
        parse_seconds,
        optional=False,
    ),
    Key(field="replay", name="replay", rule=RULE, read=str, accepts=is_replay, optional=True),
)
"""Every setting, in the order in which it is shown."""


def settings_of(values: dict[str, object]) -> Settings:
    """Settings with these values by field name and defaults for the rest; each value checks itself."""
    return Settings(**cast("dict[str, Any]", values))

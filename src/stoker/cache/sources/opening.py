# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Descriptions of sources, and the sources themselves, built once in each process that reads.

A filesystem that was inherited over a fork raises (s3fs) or hangs (obstore), and one that is shared with the program
may have cached listings. So what travels is the description, and what reads is a private instance.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import fsspec.asyn

from stoker.cache.sources.generic import GenericSource
from stoker.cache.sources.http import HttpSource
from stoker.cache.sources.local import LocalSource
from stoker.cache.sources.memory import MemorySource
from stoker.cache.sources.namespaces import ALIASES, namespace_for
from stoker.cache.sources.originals import building, filesystem_class
from stoker.cache.sources.s3 import S3Source
from stoker.cache.sources.source import Source

PARALLEL_CONNECTIONS = 32

_inherited: list[Source] = []
"""Sources of the process that this one was forked from. They are never let go of: the finalizers of their filesystems
would close connections that are the parent's, on an event loop that does not run here."""


# fsspec means to free this lock in children itself, but resets another name (`lock`, 2026.9): a child that was forked
# while a thread of its parent made the event loop would wait for that thread for ever.
os.register_at_fork(after_in_child=fsspec.asyn.reset_lock)


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """How to build a source; can be pickled, and never shows its options.

    Attributes:
        protocol: of the filesystem, as fsspec knows it.
        options: for the filesystem's constructor, credentials among them.
    """

    protocol: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any], repr=False)

    @property
    def namespace(self) -> str:
        """Tells the store from every other."""
        return namespace_for(self.protocol, self.options)


class SourceHolder:
    """A source of this process, built at first use and again in a forked child."""

    def __init__(self, spec: SourceSpec) -> None:
        """Builds nothing yet.

        Args:
            spec: how to build it.
        """
        self.spec = spec
        self._source: Source | None = None
        self._pid = 0
        self._lock = threading.Lock()

    def get(self) -> Source:
        """The source of this process."""
        pid = os.getpid()
        if self._source is None or self._pid != pid:
            if self._pid != pid:
                self._lock = threading.Lock()  # the parent's may have been held when it forked
                if self._source is not None:
                    _inherited.append(self._source)
                self._pid, self._source = pid, None
            with self._lock:
                if self._source is None:
                    self._source = open_source(self.spec)
        return self._source

    def __reduce__(self) -> tuple[type[SourceHolder], tuple[SourceSpec]]:
        return SourceHolder, (self.spec,)


_KINDS = {"s3": S3Source, "http": HttpSource, "file": LocalSource, "memory": MemorySource}


def open_source(spec: SourceSpec) -> Source:
    """Builds a source with a filesystem of its own."""
    protocol = ALIASES.get(spec.protocol, spec.protocol)
    options = dict(spec.options)
    if protocol == "s3":
        options["config_kwargs"] = {"max_pool_connections": PARALLEL_CONNECTIONS} | (options.get("config_kwargs") or {})
    target = private_filesystem(spec.protocol, options)
    return _KINDS.get(protocol, GenericSource)(target, spec.namespace)


def private_filesystem(protocol: str, options: Mapping[str, Any]) -> Any:
    """A filesystem that nobody else uses and that caches no listings."""
    own: dict[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False}
    with building():
        return filesystem_class(protocol)(**{**options, **own})

# pyright: reportMissingTypeStubs=false
"""Descriptions of sources, and the sources themselves, built once in each process that reads.

A filesystem that was inherited over a fork raises (s3fs) or hangs (obstore), and one that is shared with the program
may have cached listings. So processes pass the description, and each reads through a private instance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import fsspec.asyn

from stoker.cache.sources.fsspec_registry import building, filesystem_class
from stoker.cache.sources.generic import GenericSource
from stoker.cache.sources.http import HttpSource
from stoker.cache.sources.local import LocalSource
from stoker.cache.sources.memory import MemorySource
from stoker.cache.sources.namespaces import ALIASES, namespace_for
from stoker.cache.sources.s3 import S3Source
from stoker.cache.sources.source import Source
from stoker.core.processes.forking import at_fork, per_process

PARALLEL_CONNECTIONS = 32


# fsspec means to free this lock in children itself, but resets another name (`lock`, 2026.9): a child that was forked
# while a thread of its parent made the event loop would wait for that thread for ever.
at_fork(fsspec.asyn.reset_lock)


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
        """Identifies the store."""
        return namespace_for(self.protocol, self.options)


class SourceHolder:
    """A source of this process, built at first use and again in a forked child."""

    def __init__(self, spec: SourceSpec) -> None:
        """Builds nothing yet.

        Args:
            spec: how to build it.
        """
        self.spec = spec
        # Inherited ones are kept: finalizers of their filesystems would close connections that are the parent's, on an
        # event loop that does not run in the child.
        self._source = per_process(lambda: open_source(spec))

    def get(self) -> Source:
        """The source of this process."""
        return self._source()

    def __reduce__(self) -> tuple[type[SourceHolder], tuple[SourceSpec]]:
        return SourceHolder, (self.spec,)


_KINDS = {"s3": S3Source, "http": HttpSource, "file": LocalSource, "memory": MemorySource}


def open_source(spec: SourceSpec) -> Source:
    """Builds a source with a private filesystem."""
    protocol = ALIASES.get(spec.protocol, spec.protocol)
    options = dict(spec.options)
    if protocol == "s3":
        options["config_kwargs"] = {"max_pool_connections": PARALLEL_CONNECTIONS} | (options.get("config_kwargs") or {})
    target = private_filesystem(spec.protocol, options)
    return _KINDS.get(protocol, GenericSource)(target, spec.namespace)


def private_filesystem(protocol: str, options: Mapping[str, Any]) -> Any:
    """A private filesystem that caches no listings."""
    own: dict[str, Any] = {"skip_instance_cache": True, "use_listings_cache": False}
    with building():
        return filesystem_class(protocol)(**{**options, **own})

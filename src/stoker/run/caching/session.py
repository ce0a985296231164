"""The data cache in a run: what the launcher passes to the run's processes, and how they install it.

A run pins each path to the version first read, except under an ``always`` rule.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import msgspec

from stoker.cache.filesystem import routing
from stoker.cache.page_stores import note_asked, page_store, settled
from stoker.cache.reading.read_counters import watch
from stoker.cache.reading.run_counters import RunCounts, create_ledger
from stoker.cache.settings import CacheSettings
from stoker.cache.store.layout import StoreSettings
from stoker.cache.store.page_store import PageStore
from stoker.core.errors import CacheBusyError, CacheUnwritableError
from stoker.core.saying import say
from stoker.run.caching.cache_run import CacheRun
from stoker.run.caching.changes import Teller
from stoker.run.environment import CACHE_ENV


def environment(settings: CacheSettings, run_id: str, *, quiet: bool) -> dict[str, str]:
    """Variables that route a program's reads through the cache; none without a cache.

    Args:
        settings: of the cache in the run.
        run_id: unique on this host.
        quiet: print errors only.

    Raises:
        CacheDirectoryError: the directory holds something else, or is unusable and ``cache-required`` is set.
        ConfigError: the cluster's name is invalid, or its workers refuse this secret or certificate.
    """
    if settings.directory == "off":
        return {}
    try:
        wanted, is_known = usable(settings)
        note_asked(wanted)
    except (CacheUnwritableError, CacheBusyError) as error:
        if settings.required:
            raise
        say(f"cache: off, stores are read directly: {error.args[0]}")
        return {}
    if not is_known and not quiet:
        sys.stderr.write(
            f"stoker: cache: the workers of `{wanted.cluster.join}` are unknown; until they are found, what is not "
            f"cached in {wanted.directory} is read from its store\n"
        )
    began = time.time()
    pinned = tuple(replace(rule, pinned_since=began) for rule in wanted.all_rules)
    ledger = create_ledger(Path(wanted.directory), run_id)
    told = CacheRun(
        cache=msgspec.structs.replace(wanted, rules=pinned), ledger=str(ledger), pid=os.getpid(), quiet=quiet
    )
    # Filesystems that the program makes itself (`stoker://`) keep their pages there as well.
    return {CACHE_ENV: told.to_json(), "STOKER_CACHE_DIR": wanted.directory}


def usable(settings: CacheSettings) -> tuple[CacheSettings, bool]:
    """The settled settings, and whether their cluster is known: refused here rather than in every process.

    Args:
        settings: of a run that uses the cache.

    Raises:
        CacheDirectoryError: the directory cannot be used.
        CacheBusyError: it is new, and a stopped process holds the lock under which it is made.
        ConfigError: the cluster's name is invalid, or its workers refuse this secret or certificate.
    """
    wanted = settled(settings)
    # Opened and closed: errors that a program would hit at its first read show here.
    PageStore(Path(wanted.directory), StoreSettings(limit_bytes=wanted.limit_bytes)).close()
    if not wanted.cluster.join:
        return wanted, True
    from stoker.cache.peer_clients import peer_client

    # This also puts the ring next to the pages, where the processes find it.
    client = peer_client(wanted)
    client.check()
    return wanted, client.record is not None


def install(text: str) -> None:
    """Routes this process's reads.

    Args:
        text: what the launcher told.
    """
    told = CacheRun.from_json(text)
    ledger = RunCounts(Path(told.ledger))
    # Readers of this process count in the run's shared ledger.
    watch.counts = lambda: ledger
    teller = Teller(Path(told.ledger), quiet=told.quiet)
    watch.tell_changed, watch.tell_around = teller.tell, teller.tell_around
    # Before anything is routed: a failure here leaves the program's reads unchanged.
    page_store(told.cache)
    routing.install(told.cache)

"""The data cache in a run: what the launcher tells the run's processes, and how they install it.

A run reads one version of a path: the one that the store had when the run looked at it first. Paths whose rule says
``always`` are asked for each time all the same.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from stoker.cache.filesystem import routing
from stoker.cache.page_stores import page_store
from stoker.cache.reading.read_counters import watch
from stoker.cache.reading.run_counters import RunCounts, create_ledger
from stoker.cache.rule_settings import CacheSettings, cache_settings, note_asked, rules_of, settled
from stoker.cache.store.layout import StoreSettings
from stoker.cache.store.page_store import PageStore
from stoker.core.config import Settings
from stoker.core.errors import CacheBusyError, CacheUnwritableError
from stoker.core.saying import say
from stoker.run.caching.changes import Teller
from stoker.run.environment import CACHE_ENV


def environment(settings: Settings, run_id: str) -> dict[str, str]:
    """Variables that route a program's reads through the cache; none if that is not wanted.

    Args:
        settings: of the run.
        run_id: tells the run from all others of this host.

    Raises:
        CacheDirectoryError: the directory holds something else, or cannot be used and ``cache-required`` is set.
        ConfigError: the cluster to join is named wrongly, or its workers will not have this secret or certificate.
    """
    if settings.cache == "off":
        return {}
    try:
        wanted, directory, is_known = usable(settings)
        note_asked(wanted)
    except (CacheUnwritableError, CacheBusyError) as error:
        if settings.cache_required:
            raise
        say(f"cache: off, so that stores are read as without it: {error.args[0]}")
        return {}
    ledger = create_ledger(directory, run_id)
    if not is_known and not settings.quiet:
        sys.stderr.write(
            f"stoker: cache: nobody tells which workers `{wanted.join}` has; until that changes, what is not in "
            f"{directory} is read from its store\n"
        )
    told = {
        "directory": str(directory),
        "limit_bytes": wanted.limit_bytes,
        "rules": settings.cache_rules,
        "verify": wanted.verify,
        "join": wanted.join,
        "secret_file": str(wanted.secret_file) if wanted.secret_file is not None else None,
        "timeout_s": wanted.timeout_s,
        "tls_ca": str(wanted.tls_ca) if wanted.tls_ca is not None else None,
        "began": time.time(),
        "ledger": str(ledger),
        "pid": os.getpid(),
        "quiet": settings.quiet,
    }
    # Filesystems that the program makes itself (`stoker://`) keep their pages there as well.
    return {CACHE_ENV: json.dumps(told), "STOKER_CACHE_DIR": str(directory)}


def usable(settings: Settings) -> tuple[CacheSettings, Path, bool]:
    """The cache's settings and directory, and whether its cluster is known: refused here rather than in every process.

    Args:
        settings: of a run that uses the cache.

    Raises:
        CacheDirectoryError: the directory cannot be used.
        CacheBusyError: it is new, and a stopped process holds the lock under which it is made.
        ConfigError: the cluster to join is named wrongly, or its workers will not have this secret or certificate.
    """
    wanted = settled(cache_settings(settings))
    directory = wanted.directory
    assert directory is not None
    # Opened and closed: what a program would fail on at its first read shows here.
    PageStore(directory, StoreSettings(limit_bytes=wanted.limit_bytes)).close()
    if not wanted.join:
        return wanted, directory, True
    from stoker.cache.peer_clients import peer_client

    # The processes find the ring beside the pages then.
    client = peer_client(wanted.join, directory, wanted.secret_file, wanted.tls_ca, wanted.timeout_s)
    client.check()
    return wanted, directory, client.record is not None


def install(text: str) -> None:
    """Routes this process's reads.

    Args:
        text: what the launcher told.
    """
    told: dict[str, Any] = json.loads(text)
    rules = tuple(replace(rule, pinned_since=told["began"]) for rule in rules_of(told["rules"]))
    ledger = RunCounts(Path(told["ledger"]))
    # Readers of this process count where the whole run does.
    watch.counts = lambda: ledger
    teller = Teller(Path(told["ledger"]), quiet=told["quiet"])
    watch.tell_changed, watch.tell_around = teller.tell, teller.tell_around
    # Before anything is routed: what fails here leaves the program's reads as they are.
    page_store(told["directory"], told["limit_bytes"], rules, told["verify"])
    names = ("directory", "limit_bytes", "verify", "join", "secret_file", "tls_ca", "timeout_s")
    routing.install(rules=rules, **{name: told[name] for name in names})

"""The data cache in a run: what the launcher tells the run's processes, and how they install it.

A run reads one version of a path: the one that the store had when the run looked at it first. Paths whose rule says
``always`` are asked for each time all the same.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from stoker.cache import reading
from stoker.cache.filesystem import routing
from stoker.cache.ledger import Ledger, create_ledger
from stoker.cache.peer_clients import peer_client
from stoker.cache.rule_settings import cache_settings, note_size, rules_of, settled
from stoker.core.config import Settings
from stoker.core.errors import CacheDirectoryError
from stoker.run.environment import CACHE_ENV


def environment(settings: Settings, run_id: str) -> dict[str, str]:
    """Variables that route a program's reads through the cache; none if that is not wanted.

    Args:
        settings: of the run.
        run_id: tells the run from all others of this host.

    Raises:
        CacheDirectoryError: the directory cannot be made.
        ConfigError: the cluster to join is named wrongly, or its secret cannot be used.
    """
    if settings.cache == "off":
        return {}
    wanted = settled(cache_settings(settings))
    directory = wanted.directory
    assert directory is not None
    try:
        if settings.cache_size_bytes is not None:
            note_size(wanted)
        ledger = create_ledger(directory, run_id)
    except OSError as error:
        raise CacheDirectoryError(
            f"`{directory}` must be a folder that can be written for the cache: {error.strerror}; choose another one "
            "with --cache=DIR or STOKER_CACHE_DIR",
            path=str(directory),
        ) from None
    if wanted.join:
        # Refused here rather than in every process; those find the ring beside the pages then.
        peer_client(wanted.join, directory, wanted.secret_file)
    told = {
        "directory": str(directory),
        "limit_bytes": wanted.limit_bytes,
        "rules": settings.cache_rules,
        "join": wanted.join,
        "secret_file": str(wanted.secret_file) if wanted.secret_file is not None else None,
        "began": time.time(),
        "ledger": str(ledger),
        "pid": os.getpid(),
        "quiet": settings.quiet,
    }
    return {CACHE_ENV: json.dumps(told)}


def install(text: str) -> None:
    """Routes this process's reads.

    Args:
        text: what the launcher told.
    """
    told: dict[str, Any] = json.loads(text)
    rules = tuple(replace(rule, pinned_since=told["began"]) for rule in rules_of(told["rules"]))
    counts = Ledger(Path(told["ledger"]))
    # Readers of this process count where the whole run does.
    reading.Counts = lambda: counts
    cluster = {"join": told["join"], "secret_file": told["secret_file"]}
    routing.install(rules=rules, directory=told["directory"], limit_bytes=told["limit_bytes"], **cluster)

"""Waits in a program's interpreter until it imports fsspec or pyarrow's filesystems, then routes them to the cache.

Decides when, not how. Armed by ``site/sitecustomize.py`` in every interpreter below ``stoker run --cache``, data
workers included, and below a program that called ``stoker.cache.install()`` under ``stoker run``; kept to modules that
a bare interpreter has loaded anyway.
"""

from __future__ import annotations

import atexit
import os
import sys

from stoker.run.environment import CACHE_ENV, INSTALL_ENV
from stoker.run.import_watch import ImportWatch, is_complete

_TARGETS = ("fsspec", "pyarrow.fs", "pyarrow.parquet")

_watch: ImportWatch | None = None


def arm() -> None:
    """Waits for the import of one of them; does nothing the second time."""
    global _watch
    if _watch is None and (os.environ.get(CACHE_ENV) or os.environ.get(INSTALL_ENV)):
        atexit.register(_report)
        _watch = ImportWatch(_TARGETS, _fire)
        _watch.insert()
        loaded = next(filter(is_complete, _TARGETS), "")
        if loaded:
            _fire(loaded)


def _fire(just_executed: str) -> None:
    """Installs the routing, once; a failure costs the program a line on stderr, never more."""
    global _watch
    if _watch is None or any(
        name in sys.modules and not is_complete(name) for name in _TARGETS if name != just_executed
    ):
        return  # pyarrow.parquet imports pyarrow.fs, and both must be whole
    _watch.remove()
    text, _watch = os.environ.get(CACHE_ENV, ""), None
    try:
        if text:
            from stoker.run.caching import session

            session.install(text)
        else:
            # The program called `stoker.cache.install()` in the process that started this one.
            from stoker.cache.filesystem import routing

            routing.install_from_environment()
    except Exception as error:  # the program continues without the cache, whatever went wrong
        _complain("route reads through the cache", error)


def _report() -> None:
    """Prints the result if no report of the run does, in the process that `stoker run` became."""
    # Fast path: in most processes, the text does not contain the process id, so it need not be parsed.
    if str(os.getpid()) in os.environ.get(CACHE_ENV, ""):
        try:
            from stoker.run.caching import report

            report.say()
        except Exception as error:
            _complain("say what was cached", error)


def _complain(what: str, error: Exception) -> None:
    words = " ".join(f"{type(error).__name__}: {error}".split())
    try:
        sys.stderr.write(f"stoker: could not {what}: {words}\n")
    except (AttributeError, OSError, ValueError):
        pass  # no stderr, or a closed one

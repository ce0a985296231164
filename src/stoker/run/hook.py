"""Waits in a program's interpreter until it imports torch's loaders, then starts the session.

Decides when, not how: nothing of torch or of stoker beyond this module is imported before the program imports torch
itself. Armed by ``site/sitecustomize.py`` in every interpreter that inherits ``STOKER_ACTIVE``. Kept to modules that a
bare interpreter has loaded anyway, because each child interpreter of the program pays for this import.
"""

from __future__ import annotations

import os
import sys

from stoker.run.environment import WORKER_ENV
from stoker.run.import_watch import ImportWatch, is_complete

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from stoker.run.run_context import Active as Active

_LOADERS = "torch.utils.data"
_TARGETS = ("torch", _LOADERS)
"""Both must be complete. ``import torch`` runs ``torch.utils.data`` in the middle of its own import (seen in 2.13),
and the session could import hardly anything of torch at that moment."""

_finder: ImportWatch | None = None
_unarmed, _unfired = [True], [True]
"""The thread that pops an item arms the hook, or fires it: a list's ``pop`` is atomic, and a forked child inherits no
held lock."""
_helper = False


def arm() -> None:
    """Waits for the program's import of torch; does nothing the second time, in helpers and in data workers.

    Note: thread-safe. Where torch is loaded already, the session is installed before this returns.
    """
    global _finder, _helper
    command = _command(sys.orig_argv)
    if "multiprocessing.resource_tracker" in command or os.environ.get(WORKER_ENV):
        return
    if not _is_first(_unarmed):
        return
    _finder = ImportWatch(_TARGETS, _fire_if_complete)
    _finder.insert()
    if "multiprocessing.forkserver" in command:
        # Imported here: its `threading` costs 1 ms, which other interpreters save.
        from stoker.core.processes.forking import at_fork

        # It may preload torch, but only its forks run the program's code.
        _helper = True
        at_fork(_leave_helper)
    _fire_if_complete("")


def is_armed() -> bool:
    """True once :func:`arm` has taken effect in this process, before and after the session is installed."""
    return _finder is not None


def is_installed() -> bool:
    """True once the session was started in this process, successful or not."""
    return not _unfired


def _fire_if_complete(just_executed: str) -> None:
    if not _helper and all(name == just_executed or is_complete(name) for name in _TARGETS):
        _fire()


def _fire() -> None:
    """Installs the session, once; a failure costs the program a line on stderr, never more."""
    if _finder is None or not _is_first(_unfired):
        return
    _finder.remove()
    try:
        from stoker.run import modes
        from stoker.run.run_context import Active

        modes.install(Active.from_environment())
    except Exception as error:  # the program continues without us, whatever went wrong
        _complain(error)


def _is_first(token: list[bool]) -> bool:
    try:
        return token.pop()
    except IndexError:
        return False


def _complain(error: Exception) -> None:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    try:
        sys.stderr.write(f"stoker: could not serve this program's loaders: {text}; running without stoker\n")
    except (AttributeError, OSError, ValueError):
        pass  # no stderr, or a closed one


def _leave_helper() -> None:
    """Runs in each fork of the forkserver: from here on this is a process of the program."""
    global _helper
    if _helper:
        _helper = False
        _fire_if_complete("")


def _command(orig_argv: Sequence[str]) -> str:
    """The text after ``-c`` with which multiprocessing starts its helpers, else an empty string."""
    after = iter(orig_argv)
    text = next((next(after, "") for word in after if word == "-c"), "")
    return text if text.startswith("from multiprocessing.") else ""


def __getattr__(name: str) -> object:
    """``hook.Active``, imported on first use: its dataclass costs more than this whole module."""
    if name == "Active":
        from stoker.run.run_context import Active

        return Active
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

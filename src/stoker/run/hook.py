"""Waits in a program's interpreter until it imports torch's loaders, then hands over to the session.

Owns the moment, not the serving: nothing of torch or of stoker beyond this module is imported before the program does
it itself. Armed by ``site/sitecustomize.py`` in every interpreter that inherits ``STOKER_ACTIVE``. Kept to modules that
a bare interpreter has loaded anyway, because each child interpreter of the program pays for this import.
"""

from __future__ import annotations

import os
import sys
from _thread import allocate_lock  # `threading` would cost every interpreter a millisecond

from stoker.run.environment import WORKER_ENV

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import CodeType, FunctionType, ModuleType
    from typing import Any

    from stoker.run.active import Active as Active

_LOADERS = "torch.utils.data"
_TARGETS = ("torch", _LOADERS)
"""Both must be complete. ``import torch`` runs ``torch.utils.data`` in the middle of its own import (seen in 2.13),
and the session could import hardly anything of torch at that moment."""

_lock = allocate_lock()
_finder: _Finder | None = None
_fired = False
_disarmed = False
_helper = False


class _Finder:
    """First on ``sys.meta_path``: lets the others find the targets, and watches their execution."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the spec that plain python would get, its loader watched; None for all other modules."""
        if name not in _TARGETS:
            return None
        for finder in sys.meta_path[_position(self) + 1 :]:
            find = getattr(finder, "find_spec", None)  # very old finders have another interface
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                _watch(spec)
                return spec
        return None


def arm() -> None:
    """Waits for the program's import of torch; does nothing the second time, in helpers and in data workers.

    Note: thread-safe. Where torch is loaded already, the session is installed before this returns.
    """
    global _finder, _helper
    command = _command(sys.orig_argv)
    if "multiprocessing.resource_tracker" in command or os.environ.get(WORKER_ENV):
        return
    with _lock:
        if _finder is not None or _disarmed:
            return
        _finder = _Finder()
        sys.meta_path.insert(0, _finder)
        if "multiprocessing.forkserver" in command:
            # It may preload torch, but only its forks run the program's code.
            _helper = True
            os.register_at_fork(after_in_child=_leave_helper)
    _fire_if_complete("")


def is_armed() -> bool:
    """True once :func:`arm` has taken effect in this process, before and after the session is installed."""
    return _finder is not None and not _disarmed


def is_installed() -> bool:
    """True once the session was asked to serve this process, whether or not it could."""
    return _fired


def disarm() -> None:
    """Stops waiting, for good; for forks that serve the program and must never be served (data workers)."""
    global _disarmed
    with _lock:
        _disarmed = True
        _remove_finder()


def _watch(spec: ModuleSpec) -> None:
    """Makes the loader's next execution of this module end in :func:`_fire_if_complete`.

    The loader object stays the one of plain python, so that ``__spec__`` and ``__loader__`` do; only this one instance
    is changed, and only until it executes.
    """
    loader: Any = spec.loader
    try:
        execute = loader.exec_module
        if isinstance(loader, type) or "exec_module" in vars(loader):
            return  # a class is shared by all its modules; a watched instance needs no second watch
    except (AttributeError, TypeError):
        return

    def exec_module(module: ModuleType) -> None:
        if module.__name__ == spec.name:
            vars(loader).pop("exec_module", None)
        execute(module)
        if module.__name__ == spec.name:
            _fire_if_complete(spec.name)

    loader.exec_module = _as_import_machinery(exec_module)


def _as_import_machinery(function: Any) -> Any:
    """Gives a function the file name whose frames python leaves out of tracebacks and warnings of failed imports."""
    wrapped: FunctionType = function
    code: CodeType = wrapped.__code__
    wrapped.__code__ = code.replace(co_filename="<frozen importlib._bootstrap_external>")
    return wrapped


def _fire_if_complete(just_executed: str) -> None:
    if not _helper and all(name == just_executed or _is_complete(name) for name in _TARGETS):
        _fire()


def _is_complete(name: str) -> bool:
    module = sys.modules.get(name)
    return module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False)


def _fire() -> None:
    """Installs the session, once; a failure costs the program a line on stderr, never more."""
    global _fired
    with _lock:
        if _fired or _disarmed or _finder is None:
            return
        _fired = True
        _remove_finder()
    try:
        from stoker.run import session
        from stoker.run.active import Active

        session.install(Active.from_environment())
    except Exception as error:  # the program runs on without us, whatever went wrong
        _complain(error)


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


def _remove_finder() -> None:
    if _finder is not None and _finder in sys.meta_path:
        sys.meta_path.remove(_finder)


def _position(finder: object) -> int:
    return next((at for at, other in enumerate(sys.meta_path) if other is finder), -1)


def _command(orig_argv: Sequence[str]) -> str:
    """The text after ``-c`` with which multiprocessing starts its helpers, else an empty string."""
    after = iter(orig_argv)
    text = next((next(after, "") for word in after if word == "-c"), "")
    return text if text.startswith("from multiprocessing.") else ""


def __getattr__(name: str) -> object:
    """``hook.Active``, imported on first use: its dataclass costs more than this whole module."""
    if name == "Active":
        from stoker.run.active import Active

        return Active
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

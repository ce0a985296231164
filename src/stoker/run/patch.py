# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false
# (replaces two methods of torch's DataLoader)
"""The two methods of torch's DataLoader that are replaced while loaders are served.

Classes and constructors stay what they are, so subclasses, ``isinstance`` and pickles work as ever: only where an
iterator is made is ours, and the constructor additionally remembers where the program called it.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader

from stoker.run.serving import Serving, call_site

_stock_get_iterator = DataLoader._get_iterator
_stock_init = DataLoader.__init__
_serving: Serving | None = None
_singles: weakref.WeakKeyDictionary[DataLoader[Any], Callable[[], Serving]] = weakref.WeakKeyDictionary()


def install(serving: Serving) -> None:
    """From now on ``serving`` makes the iterators of every DataLoader."""
    global _serving
    _serving = serving
    DataLoader._get_iterator = _get_iterator
    DataLoader.__init__ = _init


def serve_one(loader: DataLoader[Any], serving: Callable[[], Serving]) -> None:
    """From now on what ``serving`` returns makes the iterators of this loader; others are not touched."""
    _singles[loader] = serving
    DataLoader._get_iterator = _get_iterator


def remove() -> None:
    """Puts torch's own methods back."""
    global _serving
    _serving = None
    DataLoader.__init__ = _stock_init
    if not _singles:
        DataLoader._get_iterator = _stock_get_iterator


def current() -> Serving | None:
    """Who serves this process's loaders, if anybody."""
    return _serving


def serving_of(loader: DataLoader[Any]) -> Serving | None:
    """Who serves a loader of torch's, if anybody."""
    if _serving is not None:
        return _serving
    single = _singles.get(loader)
    return single() if single is not None else None


def stock_iterator(loader: DataLoader[Any]) -> Any:
    """Torch's own iterator."""
    return _stock_get_iterator(loader)


@functools.wraps(_stock_get_iterator)
def _get_iterator(self: DataLoader[Any]) -> Any:
    serving = serving_of(self)
    if serving is None or serving.settings.off:
        return _stock_get_iterator(self)
    return serving.iterate(self, lambda: _stock_get_iterator(self))


@functools.wraps(_stock_init)
def _init(self: DataLoader[Any], *args: Any, **kwargs: Any) -> None:
    _stock_init(self, *args, **kwargs)
    if _serving is not None:
        _serving.sites[self] = call_site(2)

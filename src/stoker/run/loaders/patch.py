"""The methods of torch's DataLoader that are replaced while loaders are served.

Classes and constructors stay what they are, so subclasses, ``isinstance`` and pickles work as ever: only where an
iterator is made is ours, and the constructor additionally remembers where the program called it. Some libraries
(fastai) make torch's iterators themselves, over an object that stands in for a loader: they get ours as well.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader

from stoker.core.patching import Patches
from stoker.feed.loader.stock import is_torchs_own, torchs_own
from stoker.feed.torch_private import GET_ITERATOR, InProcessIterator, WorkersIterator, stock_get_iterator
from stoker.run.loaders.serving import Serving

_ITERATORS = (WorkersIterator, InProcessIterator)
_loader: Any = DataLoader
_stock_init = _loader.__init__
_replaced = Patches("loaders are served")
_remembered = Patches("remembers where the program creates loaders")
_for_good = Patches("serves iterators that are created by their class")
"""A class that has had a ``__new__`` cannot be made without one any more."""
_serving: Serving | None = None
_singles: weakref.WeakKeyDictionary[DataLoader[Any], Callable[[], Serving]] = weakref.WeakKeyDictionary()


def install(serving: Serving) -> None:
    """Makes ``serving`` create the iterators of every DataLoader from now on."""
    global _serving
    _serving = serving
    _replaced.set(DataLoader, GET_ITERATOR, _get_iterator)
    _remembered.set(DataLoader, "__init__", _init)
    for kind in _ITERATORS:
        _for_good.set(kind, "__new__", _new)


def serve_one(loader: DataLoader[Any], serving: Callable[[], Serving]) -> None:
    """Makes the result of ``serving`` create the iterators of this loader only from now on."""
    _singles[loader] = serving
    _replaced.set(DataLoader, GET_ITERATOR, _get_iterator)


def remove() -> None:
    """Restores torch's own methods."""
    global _serving
    _serving = None
    _remembered.restore()
    if not _singles:
        _replaced.restore()


def current() -> Serving | None:
    """The :class:`Serving` of this process's loaders, if any."""
    return _serving


def serving_of(loader: DataLoader[Any]) -> Serving | None:
    """The :class:`Serving` of a torch loader, if any."""
    if _serving is not None:
        return _serving
    single = _singles.get(loader)
    return single() if single is not None else None


def stock_iterator(loader: DataLoader[Any]) -> Any:
    """Torch's own iterator."""
    with torchs_own():
        return stock_get_iterator(loader)


@functools.wraps(stock_get_iterator)
def _get_iterator(self: DataLoader[Any]) -> Any:
    serving = serving_of(self)
    if serving is None or serving.settings.report.off:
        return stock_iterator(self)
    return serving.iterate(self, lambda: stock_iterator(self))


def _new(kind: Any, *args: Any, **kwargs: Any) -> Any:
    """Makes one of torch's iterators, or, where the program makes it by its class, ours."""
    serving, loader = _serving, args[0] if args else kwargs.get("loader")
    if is_torchs_own() or serving is None or serving.settings.report.off or kind not in _ITERATORS or loader is None:
        return object.__new__(kind)
    # Python calls the constructor of torch's class, and not that of ours, which is another class.
    return serving.iterate(loader, lambda: object.__new__(kind))


@functools.wraps(_stock_init)
def _init(self: DataLoader[Any], *args: Any, **kwargs: Any) -> None:
    _stock_init(self, *args, **kwargs)
    if _serving is not None:
        _serving.made(self)

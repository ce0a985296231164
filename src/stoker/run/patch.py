# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportPrivateUsage=false
# (replaces two methods of torch's DataLoader)
"""The two methods of torch's DataLoader that are replaced while loaders are served.

Classes and constructors stay what they are, so subclasses, ``isinstance`` and pickles work as ever: only where an
iterator is made is ours, and the constructor additionally remembers where the program called it.
"""

from __future__ import annotations

import functools
from typing import Any

from torch.utils.data import DataLoader

from stoker.run.serving import Serving, call_site

_stock_get_iterator = DataLoader._get_iterator
_stock_init = DataLoader.__init__
_serving: Serving | None = None


def install(serving: Serving) -> None:
    """From now on ``serving`` makes the iterators of every DataLoader."""
    global _serving
    _serving = serving
    DataLoader._get_iterator = _get_iterator
    DataLoader.__init__ = _init


def remove() -> None:
    """Puts torch's own methods back."""
    global _serving
    _serving = None
    DataLoader._get_iterator = _stock_get_iterator
    DataLoader.__init__ = _stock_init


def current() -> Serving | None:
    """Who serves this process's loaders, if anybody."""
    return _serving


@functools.wraps(_stock_get_iterator)
def _get_iterator(self: DataLoader[Any]) -> Any:
    serving = _serving
    if serving is None:
        return _stock_get_iterator(self)
    return serving.iterate(self, lambda: _stock_get_iterator(self))


@functools.wraps(_stock_init)
def _init(self: DataLoader[Any], *args: Any, **kwargs: Any) -> None:
    _stock_init(self, *args, **kwargs)
    if _serving is not None:
        _serving.sites[self] = call_site(2)

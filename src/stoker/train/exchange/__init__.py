"""The exchange of gradients in a running program: measured, planned, tried, checked in each step.

``stoker.train.exchange(ddp)`` is a call, and this package has its name: so the package can be called. What that does
stands in ``calling.py``.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class CallablePackage(ModuleType):
    """This package as a function."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What :func:`stoker.train.exchange.calling.exchange` does."""
        from stoker.train.exchange.calling import exchange

        return exchange(*args, **kwargs)


sys.modules[__name__].__class__ = CallablePackage

"""``@stoker.stateless``: a function of the program's own as one call that may move to data workers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from torch.overrides import handle_torch_function

from stoker.graph.torch_private import count_function_modes

_P = ParamSpec("_P")
_R = TypeVar("_R")


def stateless(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Marks a function that depends on its arguments alone: a tokeniser, a NumPy transform, a hash.

    It may then move to data workers as one call, whatever it does inside. Its arguments are parts of the batch
    (tensors, NumPy arrays, lists of strings or numbers) or made from them, and plain values; it returns a tensor, or a
    list, tuple or dict of tensors. It must be defined at the top of a module or of the script, so that a worker finds
    it, must not write to its arguments and must not keep anything from call to call. The first results are compared bit
    by bit with those of the training process.

    Under plain python the function is called as usual.

    Raises:
        TypeError: ``function`` is no function.
    """
    if not callable(function):
        raise TypeError(f"`stoker.stateless` marks functions, got {type(function).__name__}")

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if count_function_modes() > 0:
            return handle_torch_function(call, args, *args, **kwargs)
        return function(*args, **kwargs)

    call.__stoker_stateless__ = True  # type: ignore[attr-defined]
    return call

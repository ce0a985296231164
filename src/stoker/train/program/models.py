# pyright: reportUnknownMemberType=false
"""The model of a program: seen when its first forward pass for training begins.

Frameworks make models and call them in their own ways; all go through ``Module.__call__``. It is replaced until the
model is found, and only until then: later steps are torch's own.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import nn

from stoker.core.mishaps import line_of, reraise_from_handler
from stoker.core.patching import Patches
from stoker.core.saying import say

_OWN_REFERENCES = 3
"""To a frame's dictionary of variables: the frame's, ours, and that of counting. With more, the program has it too."""
Found = Callable[[nn.Module], bool]
"""Called with the outermost module of a forward pass before it begins; returns whether it is the model."""


class ModelWatch:
    """Sees the outermost modules of forward passes with gradients, each once, from :meth:`install` to :meth:`remove`.

    Args:
        found: called with each; once it returns True, the watch ends itself.
        part: what an error of it is reported as.
        consequence: what follows from the error, as half a sentence.
    """

    def __init__(self, found: Found, part: str = "fit", consequence: str = "nothing is changed") -> None:
        self._found, self._part, self._consequence = found, part, consequence
        self._patches = Patches("the model of a program")
        self._seen: weakref.WeakSet[nn.Module] = weakref.WeakSet()

    def install(self) -> None:
        """Begins."""
        self._patches.set(nn.Module, "__call__", self._calling(nn.Module.__call__))

    def remove(self) -> None:
        """Ends it."""
        self._patches.restore()

    def _calling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if torch.is_grad_enabled():
                self._look(module)
            return original(module, *args, **kwargs)

        return call

    def _look(self, module: nn.Module) -> None:
        try:
            if module in self._seen:
                return
            root = outermost(module)
            self._seen.update(root.modules())
            if self._found(root):
                self.remove()
        except Exception as error:
            reraise_from_handler(error)
            self.remove()
            say(line_of(self._part, error, self._consequence))


def outermost(module: nn.Module) -> nn.Module:
    """The outermost module that runs a method and holds this one: a trainer may never call it, only its parts."""
    found = module
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        owner = _first_argument(frame)
        if isinstance(owner, nn.Module) and owner is not found and any(part is module for part in owner.modules()):
            found = owner
        frame = frame.f_back
    return found


def _first_argument(frame: FrameType) -> object:
    if not frame.f_code.co_argcount:
        return None
    given = frame.f_locals
    owner = given.get(frame.f_code.co_varnames[0])
    if sys.version_info < (3, 13) and sys.getrefcount(given) <= _OWN_REFERENCES:
        # A frame keeps the dictionary that it gave out, and with it tensors that the program drops later.
        given.clear()
    return owner

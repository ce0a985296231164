# (torch offers no public way to put a mode below others)
"""Observes the program's torch calls for part of a step, without affecting them.

The mode goes to the *bottom* of the stack of torch function modes, below the program's own (``torch.device("meta")``
and the like), and leaves only outside of handlers: at the next request for a batch and, once nothing more is expected,
at the next module call, optimizer step or entry into compiled code.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from torch.overrides import TorchFunctionMode, handle_torch_function

from stoker.core.errors import BatchWrittenError
from stoker.core.mishaps import reraise_from_handler
from stoker.core.places import call, calling_as
from stoker.graph.functions import Function
from stoker.graph.recording.deferred import PATCHES, guard_capsules, realise
from stoker.graph.recording.recorder import Run
from stoker.graph.torch_private import (
    DeviceContext,
    compiled_module,
    context_of_compiled,
    count_function_modes,
    hooks_of_modules,
    hooks_of_optimizers,
    pop_function_mode,
    push_function_mode,
)


class Step(Protocol):
    """What sees the calls of one step: a recorder or a verifier."""

    began: bool
    """A call has touched its batch."""
    done: bool
    """It need not see further calls."""
    error: Exception | None
    """An error inside it; the program must not notice."""

    @property
    def dropped(self) -> bool:
        """Whether the program has dropped its batch before the step began: it can't begin any more."""
        ...

    def call(self, function: Function, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any], run: Run) -> Any:
        """Makes a call, or gives its result."""
        ...


class CallWatch(TorchFunctionMode):
    """The mode, and the steps that it watches for.

    Args:
        leaving: called before the mode leaves at a safe point, with True when compiled code begins.
        may_leave: whether it may, as far as steps are concerned that have not begun.
    """

    def __init__(self, leaving: Callable[[bool], None], may_leave: Callable[[], bool]) -> None:
        super().__init__()
        self._leaving = leaving
        self._may_leave = may_leave
        self._steps: list[Step] = []
        self._only: Step | None = None
        self._inside = self._num_made = 0
        self._result: Any = None
        self._place: Callable[..., Any] = call
        """Makes the call in hand as from the program's line, which its warnings then name."""
        self._raised = 0
        self._armed = False
        self._thread = 0
        """The thread on whose stack the mode is; 0 when it is on none."""

    @property
    def active(self) -> bool:
        """Whether the mode is on a stack."""
        return self._thread != 0

    def set_steps(self, steps: list[Step]) -> None:
        """Watches for these from now on, in the thread that calls; for none it leaves."""
        self._steps = steps
        self._only = steps[0] if len(steps) == 1 else None
        if not steps:
            self.detach()
        elif not self._thread:
            self._attach()
        self._arm()

    def rest(self) -> None:
        """Leaves, if it is still there, as nothing is watched for."""
        if self._thread or self._armed:
            self.set_steps([])

    def __torch_function__(
        self, func: Function, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """A call of the program."""
        step = self._only
        frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        try:
            self._place = calling_as(frame if frame.f_code is not _HANDED_OVER else _above(frame))
        except Exception:  # warnings then name our own line
            self._place = call
        if step is None:
            result = self._chain(iter(self._steps), types, func, args, kwargs or {})
            try:
                self._arm()
            except Exception as error:
                self._fail(error)
            return result
        num_made = self._num_made
        try:
            result = step.call(func, types, args, kwargs or {}, self._run)
        except Exception as error:
            if id(error) == self._raised:
                self._raised = 0  # a later exception may get the same address
                raise
            result = self._save(step, error, self._num_made > num_made, func, args, kwargs or {}, self._run)
        self._result = None
        if step.done and not self._armed:
            try:
                self._arm()
            except Exception as error:
                self._fail(error)
        return result

    def _run(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Makes a call; what it calls back (a hook, say) is at no safe point."""
        self._inside += 1
        try:
            self._result = result = self._place(function, *args, **kwargs)
            self._num_made += 1
            return result
        except Exception as error:
            self._raised = id(error)  # not the exception, which would keep its frames alive
            raise
        finally:
            self._inside -= 1

    def _save(
        self, step: Step, error: Exception, made: bool, func: Function, args: tuple[Any, ...], kwargs: Any, run: Run
    ) -> Any:
        """An error inside stoker must not reach the program: the original call runs, and the step is dropped."""
        if isinstance(error, BatchWrittenError):  # the program wrote to its batch
            raise error
        step.error, step.done = error, True
        return self._result if made else run(func, realise(args), realise(kwargs))

    def _chain(
        self, steps: Iterator[Step], types: Any, func: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Several steps at once (two loaders in one loop): each sees the call, also if it ends one; then it is made."""
        step = next(steps, None)
        if step is None:
            return self._run(func, args, kwargs)

        def run(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return self._chain(steps, types, function, args, kwargs)

        num_made = self._num_made
        try:
            return step.call(func, types, args, kwargs, run)
        except Exception as error:
            if id(error) == self._raised:
                raise
            return self._save(step, error, self._num_made > num_made, func, args, kwargs, run)

    # -- entering and leaving ----------------------------------------------------------------------------------------

    def _attach(self) -> None:
        guard_capsules()
        watch_compiled()
        above = [pop_function_mode() for _ in range(count_function_modes())]
        if above and _is_default_device(above[-1]):
            push_function_mode(above.pop())
        push_function_mode(self)
        for mode in reversed(above):
            push_function_mode(mode)
        self._thread = threading.get_ident()
        _active.append(self)

    def detach(self) -> None:
        """Takes the mode off the stack, if it is on this thread's."""
        self._disarm()
        if self._thread != threading.get_ident():
            return
        above = [pop_function_mode() for _ in range(count_function_modes())]
        for mode in reversed(above):
            if mode is not self:
                push_function_mode(mode)
        if self in above:
            self._thread = 0
            _active.remove(self)
        else:  # inside a call (an iterator is collected, say): torch took the mode off, and puts it back after the call
            self._use_safe_points()

    def _arm(self) -> None:
        """Once all that has begun is done, the next safe point is used."""
        if self._thread and not self._armed and self._is_over() and self._may_leave():
            self._use_safe_points()

    def _use_safe_points(self) -> None:
        self._armed = True
        hooks_of_modules()[id(self)] = self._at_safe_point
        hooks_of_optimizers()[id(self)] = self._at_safe_point

    def _is_over(self) -> bool:
        begun = [step for step in self._steps if step.began]
        return (bool(begun) or not self._steps) and all(step.done for step in begun)

    def _disarm(self) -> None:
        if self._armed:
            self._armed = False
            hooks_of_modules().pop(id(self), None)
            hooks_of_optimizers().pop(id(self), None)

    def _at_safe_point(self, *_: object) -> None:
        if self._inside or self._thread != threading.get_ident():
            return
        try:
            if self._is_over():
                self.leave(compiled=False)
            else:  # another step has begun since
                self._disarm()
        except Exception as error:  # inside the program's own call of a module
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """An internal error ends all observed steps."""
        reraise_from_handler(error)
        for step in self._steps:
            step.error, step.done = error, True
        with contextlib.suppress(Exception):
            self.detach()

    def leave(self, *, compiled: bool) -> None:
        """Leaves at a safe point."""
        self._leaving(compiled)
        self.detach()

    def enters_compiled(self) -> None:
        """Leaves before compiled code runs, which must find no mode."""
        if not self._inside and self._thread == threading.get_ident():
            try:
                self.leave(compiled=True)
            except Exception as error:
                self._fail(error)


_HANDED_OVER = handle_torch_function.__code__


def _above(frame: types.FrameType) -> types.FrameType:
    """The frame that called the torch function that is written in Python and handed itself over in ``frame``."""
    function = frame.f_back
    return (function.f_back if function is not None else None) or frame


def _is_default_device(mode: object) -> bool:
    """Whether torch insists on finding a mode at the very bottom, as it does for its default device.

    One of ``with torch.device(…)`` does not come in by its own ``__enter__``, and must be on top when it goes.
    """
    return isinstance(mode, DeviceContext) and hasattr(mode, "old_device")


_active: list[CallWatch] = []


def watch_compiled() -> None:
    """Makes every compiled callable announce itself, earlier ones too; once torch's compiler is loaded."""
    context = context_of_compiled()
    if context is None or isinstance(getattr(context, "enter_exit_hooks", None), property):
        return
    PATCHES.set(context, "enter_exit_hooks", property(_get_hooks, _set_hooks), adds=True)  # its objects have it
    optimized = compiled_module()
    stock = optimized.__call__

    def announced(self: Any, *args: Any, **kwargs: Any) -> Any:
        _announce()  # before torch looks for global hooks, and warns
        return calling_as(sys._getframe(1))(stock, self, *args, **kwargs)  # pyright: ignore[reportPrivateUsage]

    PATCHES.set(optimized, "__call__", announced)


def _get_hooks(self: Any) -> list[Any]:
    hooks: list[Any] = self.__dict__["enter_exit_hooks"]
    if _announce not in hooks:
        hooks.insert(0, _announce)
    return hooks


def _set_hooks(self: Any, hooks: list[Any]) -> None:
    self.__dict__["enter_exit_hooks"] = hooks


def _announce() -> Callable[[], None]:
    for watch in (*_active,):
        watch.enters_compiled()
    return _nothing


def _nothing() -> None:
    pass

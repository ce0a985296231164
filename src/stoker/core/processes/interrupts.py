"""Ctrl-C at moments when python would swallow it: around a fork, and while an object is finalised; ends by a signal.

Python runs a signal's handler wherever the main thread happens to be. An exception in a callback at a fork (`logging`
has one) or in a finaliser does not propagate: python prints "Exception ignored in" and continues, and the program never
sees the interrupt. So an interrupt there is noted, and raised afterwards.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Generator


@contextlib.contextmanager
def interrupts_deferred() -> Generator[None]:
    """Defers an interrupt of the main thread from inside the block to its end."""
    handler = _own_handler()
    if handler is None:
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def cleaned_up() -> Generator[None]:
    """Ends this process as an exit does if SIGTERM or SIGHUP comes inside the block: temporary files go, children end.

    Only where the signal would have ended it at once, and in the main thread.
    """
    numbers = (signal.SIGTERM, signal.SIGHUP)
    if threading.get_ident() == threading.main_thread().ident:
        numbers = tuple(number for number in numbers if signal.getsignal(number) is signal.SIG_DFL)
    else:
        numbers = ()
    for number in numbers:
        signal.signal(number, _exit_by)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _exit_by(number: int, _: object) -> None:
    raise SystemExit(128 + number)


class InterruptsHandedOn:
    """Defers an interrupt from inside the block, which is in a finaliser, until the finaliser has returned."""

    def __enter__(self) -> None:
        """Starts to note interrupts."""
        self._came: list[int] = []
        self._frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
        self._handler = _own_handler()
        if self._handler is not None:
            signal.signal(signal.SIGINT, lambda number, _: self._came.append(number))

    def __exit__(self, *_: object) -> None:
        """Has a noted interrupt raised later."""
        if self._handler is None:
            return
        signal.signal(signal.SIGINT, self._handler)
        if self._came:
            with contextlib.suppress(RuntimeError):  # the interpreter is ending: nothing is left to interrupt
                threading.Thread(target=_raise_outside, args=(self._frame,), daemon=True).start()


def _own_handler() -> Callable[[int, types.FrameType | None], object] | None:
    """The handler of interrupts, if this is the thread that runs it; else None."""
    if threading.get_ident() != threading.main_thread().ident:
        return None
    handler = signal.getsignal(signal.SIGINT)
    return handler if callable(handler) else None  # ignored, or left to the kernel


def _raise_outside(finaliser: types.FrameType) -> None:
    while True:  # polls, since the end of a frame cannot be waited for
        over = not _is_running(finaliser)
        time.sleep(0.001)  # also once it is over: the object's attributes are finalised next, within microseconds
        if over:
            break
    os.kill(os.getpid(), signal.SIGINT)


def _is_running(sought: types.FrameType) -> bool:
    main = threading.main_thread().ident
    frames = sys._current_frames()  # pyright: ignore[reportPrivateUsage]
    frame = frames.get(main) if main is not None else None
    while frame is not None and frame is not sought:
        frame = frame.f_back
    return frame is not None

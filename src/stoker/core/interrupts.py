"""Ctrl-C at moments when python would swallow it: around a fork, and while an object is finalised.

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

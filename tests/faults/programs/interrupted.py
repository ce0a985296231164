"""Is interrupted at the moments at which python swallows an interrupt, each time to be told of it all the same."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

armed = False


def strike(*_: object) -> None:
    global armed
    if armed:
        armed = False
        os.kill(os.getpid(), signal.SIGINT)


def strike_in(name: str) -> Callable[[Any, str, Any], None]:
    """For `sys.setprofile`: strikes as a function of that name begins, below a finaliser of stoker's."""

    def look(frame: Any, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name == name:
            strike()

    return look


def attempt(moment: str, act: Callable[[], object]) -> None:
    global armed
    try:
        armed = True
        act()
        time.sleep(5.0)
        print(moment, "swallowed", flush=True)
    except KeyboardInterrupt:
        print(moment, "caught" if not armed else "never came", flush=True)
    finally:
        armed = False
        sys.setprofile(None)


def make() -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(64)), batch_size=4, num_workers=2)


def leave() -> None:
    """Drops an iterator, and with it its workers."""
    iterator = iter(loader)
    next(iterator)
    sys.setprofile(strike_in("_shutdown_workers"))
    del iterator


def drop() -> None:
    """Drops a loader, whose workers were kept for its next epoch."""
    other = make()
    list(other)
    sys.setprofile(strike_in("drop"))
    del other


os.register_at_fork(before=strike)
loader = make()
attempt("fork", lambda: list(loader))
attempt("iterator", leave)
attempt("loader", drop)
print("batches", len(list(loader)))

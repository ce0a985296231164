"""The allocator's library: built by the compiler that is there, opened, and called through ctypes."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stoker.core.code.compiling import build_library
from stoker.train.arena.eager.planning import MemoryEvent, StepPlan
from stoker.train.arena.eager.policy import Counts

SOURCE = Path(__file__).with_name("allocator.cpp")
WANTED = "use_planned_allocator"
_KINDS = ("allocate", "free", "step")


class Library:
    """The allocator of this process. One library holds one allocator: build another one for another.

    Args:
        path: of the built library.
        cudart: of CUDA's runtime library.

    Raises:
        RuntimeError: CUDA's library can't be opened, or lacks what is called.
    """

    def __init__(self, path: Path, cudart: str) -> None:
        self._calls: Any = ctypes.CDLL(str(path))
        whole = ctypes.c_longlong
        for name, result, arguments in (
            ("stoker_open", ctypes.c_int, [ctypes.c_char_p]),
            ("stoker_allocate", ctypes.c_void_p, [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]),
            ("stoker_free", None, [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]),
            ("stoker_record_stream", None, [ctypes.c_void_p, ctypes.c_void_p]),
            ("stoker_release", None, []),
            ("stoker_step", None, []),
            ("stoker_events", whole, [ctypes.c_void_p, whole]),
            ("stoker_plan", ctypes.c_int, [ctypes.c_void_p, ctypes.c_void_p, whole, whole]),
            ("stoker_place", whole, [ctypes.c_void_p]),
            ("stoker_counts", None, [ctypes.c_void_p]),
        ):
            function = getattr(self._calls, name)
            function.restype, function.argtypes = result, arguments
        if self._calls.stoker_open(cudart.encode()):
            raise RuntimeError(f"`{cudart}` must be CUDA's runtime library, with `cudaMalloc` and five more functions")

    def address_of(self, name: str) -> int:
        """Where a function of the library lies."""
        return int(ctypes.cast(getattr(self._calls, name), ctypes.c_void_p).value or 0)

    def allocate(self, nbytes: int, device: int = 0, stream: int = 0) -> int:
        """As torch does."""
        return int(self._calls.stoker_allocate(nbytes, device, stream) or 0)

    def free(self, address: int, device: int = 0, stream: int = 0) -> None:
        """As torch does."""
        self._calls.stoker_free(address, 0, device, stream)

    def record_stream(self, address: int, stream: int) -> None:
        """As torch does."""
        self._calls.stoker_record_stream(address, stream)

    def release(self) -> None:
        """Gives back all blocks that are kept for later requests."""
        self._calls.stoker_release()

    def end_step(self) -> None:
        """The next request is the first of a step."""
        self._calls.stoker_step()

    def events(self) -> list[MemoryEvent]:
        """What was recorded."""
        room = int(self._calls.stoker_events(None, 0))
        found = (ctypes.c_longlong * (3 * room))()
        count = min(room, int(self._calls.stoker_events(found, room)))
        return [MemoryEvent(_KINDS[found[3 * at]], found[3 * at + 1], found[3 * at + 2]) for at in range(count)]

    def plan(self, plan: StepPlan) -> bool:
        """Ends the recording; whether there was memory for the arena."""
        count = len(plan.requests)
        sizes = (ctypes.c_longlong * count)(*(each.nbytes for each in plan.requests))
        offsets = (ctypes.c_longlong * count)(*(-1 if each.offset is None else each.offset for each in plan.requests))
        return not self._calls.stoker_plan(sizes, offsets, count, plan.nbytes)

    def place_of(self, address: int) -> int | None:
        """Bytes from the arena's start; None: an ordinary block."""
        found = int(self._calls.stoker_place(address))
        return None if found < 0 else found

    def counts(self) -> tuple[Counts, int, int]:
        """What requests got; bytes that are held; most that were."""
        found = (ctypes.c_longlong * 9)()
        self._calls.stoker_counts(found)
        return Counts(*found[:5]), int(found[5]), int(found[6])


def built_library(use: Callable[[Path], Library]) -> Library:
    """Builds the library and opens it by `use`; its file is gone afterwards.

    Raises:
        RuntimeError: no compiler is there, or it fails.
    """
    with tempfile.TemporaryDirectory(prefix="stoker-arena-") as folder:
        path = Path(folder) / "arena.so"
        build_library(SOURCE, path, wanted=WANTED)
        return use(path)

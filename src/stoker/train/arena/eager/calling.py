"""`stoker.train.arena.use_planned_allocator`: torch's CUDA memory from a planned arena."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

from stoker.core.saying import say
from stoker.core.units import format_bytes
from stoker.train.arena.eager.library import Library, built_library
from stoker.train.arena.eager.planning import StepPlan, plan_step

TYPE_CHECKING = False
if TYPE_CHECKING:
    from stoker.records.arena import EagerArena

RECORDED_STEPS = 2
_MAPS = Path("/proc/self/maps")


class PlannedAllocator:
    """The allocator of this process. A step ends with each step of the first optimizer that makes one.

    Args:
        library: that holds it.
    """

    def __init__(self, library: Library) -> None:
        self._library = library
        self._steps = 0
        self._marker: int | None = None
        self._bytes = self._bound = 0
        self._problem = ""
        self._hook = register_optimizer_step_post_hook(self._on_step)

    def _on_step(self, optimizer: Optimizer, *_: Any) -> None:
        if self._marker is None:
            self._marker = id(optimizer)
        if self._marker == id(optimizer):
            self.end_step()

    def end_step(self) -> None:
        """Ends a step; a program without an optimizer of torch calls it itself."""
        self._library.end_step()
        self._steps += 1
        if self._steps == RECORDED_STEPS:
            try:
                self._plan()
            except Exception as error:  # an error of planning never becomes the program's
                self._library.plan(StepPlan((), 0, 0))  # ends the recording
                self._problem = f"{type(error).__name__}: {error}".splitlines()[0]
                say(f"arena: all requests get ordinary blocks after an error of planning ({self._problem})")
        elif self._steps == RECORDED_STEPS + 1:
            # What recorded steps left behind has been freed by now, and nothing asks for its like again.
            self._library.release()

    def _plan(self) -> None:
        plan = plan_step(self._library.events())
        if not self._library.plan(plan):
            self._problem = f"no memory for an arena of {format_bytes(plan.nbytes)}"
            say(f"arena: all requests get ordinary blocks: {self._problem}")
            return
        self._bytes, self._bound = plan.nbytes, plan.bound

    def report(self) -> EagerArena:
        """What requests got since the plan was made."""
        # Imported here: all else of this allocator works where only torch is installed.
        from stoker.records.arena import EagerArena

        return EagerArena(**self.figures())

    def figures(self) -> dict[str, Any]:
        """The same by name."""
        counts, reserved, most = self._library.counts()
        return {
            "steps": self._steps,
            "arena_bytes": self._bytes,
            "bound_bytes": self._bound,
            "reserved_bytes": reserved,
            "most_reserved_bytes": most,
            "planned": counts.planned,
            "outliving": counts.outliving,
            "unexpected": counts.unexpected,
            "occupied": counts.occupied,
            "left_out": counts.left_out,
            "problem": self._problem,
        }


_used: list[PlannedAllocator] = []


def use_planned_allocator() -> PlannedAllocator:
    """Gives CUDA tensors of this process places in an arena that is planned from the first two steps.

    To be called before anything is allocated on a GPU. Torch's own figures (`torch.cuda.memory_allocated` and the like)
    do not know of this allocator, and CUDA graphs can't be captured with it.

    Raises:
        RuntimeError: there is no CUDA, it is in use already, or no C++ compiler is there.
    """
    if _used:
        return _used[0]
    if not torch.cuda.is_available():
        raise RuntimeError(
            "`use_planned_allocator` needs a CUDA device, and torch finds none; stoker doctor looks for it"
        )
    if torch.cuda.is_initialized():
        raise RuntimeError(
            "`use_planned_allocator` must be called before CUDA is in use, and it is; call it right after the imports"
        )
    cudart = cuda_runtime()
    library = built_library(lambda path: _installed(path, cudart))
    _used.append(PlannedAllocator(library))
    return _used[0]


def _installed(path: Path, cudart: str) -> Library:
    """Opens the library and makes it torch's allocator, while its file is there."""
    library = Library(path, cudart)
    allocator = torch.cuda.memory.CUDAPluggableAllocator(str(path), "stoker_allocate", "stoker_free")
    of_torch = cast("Any", allocator.allocator())
    of_torch.set_record_stream_fn(library.address_of("stoker_record_stream"))
    of_torch.set_reset_fn(library.address_of("stoker_release"))  # what `torch.cuda.empty_cache` calls
    torch.cuda.memory.change_current_allocator(allocator)
    return library


def cuda_runtime() -> str:
    """The file of CUDA's runtime library that torch has loaded.

    Raises:
        RuntimeError: there is none.
    """
    found = {line.split(maxsplit=5)[5].strip() for line in _MAPS.read_text().splitlines() if "libcudart" in line}
    if not found:
        raise RuntimeError(
            f"`{_MAPS}` must list `libcudart`, which torch loads, and does not; this torch is built otherwise"
        )
    return min(found)

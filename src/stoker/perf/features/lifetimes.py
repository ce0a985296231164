"""When the memory of a traced program is allocated and freed: plain data, without torch.

Time is counted in events, allocations and frees alike, from the program's start; event 0 is the first.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from stoker.perf.features.records import Phase

Category = Literal["parameters", "gradients", "optimizer", "inputs", "buffers", "activations", "temporaries"]
CATEGORIES: tuple[Category, ...] = (
    "parameters", "gradients", "optimizer", "inputs", "buffers", "activations", "temporaries",
)  # fmt: skip
"""What memory is used for, in the order in which it is shown. Activations are made by a forward pass and alive when a
backward pass begins; temporaries are the rest."""


class BufferLife(msgspec.Struct, frozen=True, array_like=True):
    """One allocation of a program."""

    bytes: int
    birth: int
    """Number of the event that allocates it."""
    death: int
    """Number of the event that frees it; the timeline's ``end`` if it outlives the step."""
    last_use: int
    """Events before the last call of the step that reads or writes it; -1 if no call does."""
    category: Category
    phase: Phase
    module: str
    """Path of the module whose forward or backward made it; empty outside of modules."""
    line: str
    """Line of the program that made it, as ``train.py:31``; empty if none is known."""
    uses: tuple[int, ...] = ()
    """Places of the step's calls that read or write it."""
    released: int = 0
    """Event until which an object holds it that a module was given, such as a cache of keys; 0 if none does."""
    rows: int = 0
    """The size of the first axis of a weight, by which ranks share it, its gradient and its states; 0 for all else."""


class CallInTime(msgspec.Struct, frozen=True, array_like=True):
    """One call of the step."""

    at: int
    """Events before it."""
    name: str
    kind: str
    phase: Phase
    module: str
    bytes: float
    """Read and written."""
    seconds: float = 0.0
    """Predicted for a GPU; 0 until it is predicted."""


class Scratch(msgspec.Struct, frozen=True, array_like=True):
    """Memory that a kernel takes while it runs, on GPUs with tensor cores for fp32."""

    at: int
    """Events before it is freed, those of its outputs among them."""
    bytes: int
    phase: Phase
    module: str
    line: str
    num_late_outputs: int = 0
    """Number of these that happen while it is held: its last outputs are allocated then."""


class HeldVariable(msgspec.Struct, frozen=True):
    """A variable of the program that holds memory when a backward pass begins."""

    buffer: int
    """Its place in the timeline."""
    name: str
    assigned: str
    """Line that assigns it; empty if it cannot be found."""
    last_used: str
    """Last line before the backward pass that reads it; empty if none does."""


class GrowingHolder(msgspec.Struct, frozen=True):
    """A container of the program that holds more after each step, with what its tensors keep."""

    name: str
    line: str
    """That adds to it; empty if it is not known."""
    bytes: int
    """A step."""
    keeps_graph: bool
    """Whether its tensors keep the graph that made them."""


class MemoryTimeline(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of a program up to the end of its traced step."""

    name: str
    target: str
    """What kernels were chosen for: ``cuda`` or ``cpu``."""
    batch_size: int
    begin: int
    """Events before the step begins."""
    end: int
    """All events."""
    buffers: tuple[BufferLife, ...]
    """In the order of their births as traced; what changes a timeline may append others, so that places stay."""
    calls: tuple[CallInTime, ...]
    held: tuple[HeldVariable, ...] = ()
    grows: tuple[GrowingHolder, ...] = ()
    """The most first."""
    scratch: tuple[Scratch, ...] = ()
    """In the order of time; no part of the buffers, since it depends on the GPU."""
    workspace_bytes: int = 8_519_680
    """What the library of matrix products keeps for each thread that multiplies: cuBLAS's default (``:4096:2:16:8``)
    before Hopper, unless a GPU is known."""

    def to_json(self) -> bytes:
        """The timeline as JSON, for files and other programs."""
        return msgspec.json.encode(self)

    @staticmethod
    def from_json(content: bytes) -> MemoryTimeline:
        """The timeline that :meth:`to_json` wrote."""
        return msgspec.json.decode(content, type=MemoryTimeline)

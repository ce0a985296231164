"""Which memory tensors live in, and how much of it is alive at each moment of a step.

A buffer is one allocation: a number for each storage that was seen, never reused although addresses are.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Literal

import torch
from torch import Tensor

from stoker.perf.features.lifetimes import GrowingHolder
from stoker.perf.features.records import Phase
from stoker.perf.features.torch_private import identity_of
from stoker.perf.features.tracing.holders import tensors_in
from stoker.perf.features.tracing.places import frames, program_line
from stoker.perf.features.tracing.sources import lines_of

Role = Literal["weight", "gradient", "state", "input", "buffer"]


class Buffers:
    """Numbers for storages, and the events from which the peak is found."""

    def __init__(self) -> None:
        self.roles: dict[int, Role] = {}
        """What a buffer is used for, if known; all others are activations."""
        self.sizes: list[int] = []
        self.module = 0
        """Number of the module whose forward is running."""
        self.makers: list[int] = []
        """The module in whose forward a buffer was made."""
        self.owners: dict[int, int] = {}
        """The module whose backward pass made a buffer."""
        self.phase: Phase = "forward"
        """What the program does now."""
        self.phases: list[Phase] = []
        """The phase in which a buffer was made."""
        self.lines: list[str] = []
        """Line of the program that made a buffer."""
        self.marks: list[set[int]] = []
        """What was alive each time that a backward pass began."""
        self.held: dict[int, tuple[str, str, str]] = {}
        """Variable that holds a buffer when a backward pass begins, where it is assigned, and where it is read last."""
        self.rows: dict[int, int] = {}
        """Sizes of the first axes of weights, gradients and states."""
        self.old_roles: dict[int, Role] = {}
        """What else was used so when the step began, such as gradients of the step before; no part of the features."""
        self.scratch: list[tuple[int, int, Phase, int, str, int]] = []
        """Memory of kernels while they run: events before it, bytes, phase, module, line, outputs it is held for."""
        self.grows: tuple[GrowingHolder, ...] = ()
        """Containers of the program that hold more after the step than before it."""
        self._numbers: dict[int, int] = {}
        self._references: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._aliases: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._events: list[int] = []
        """``n`` for an allocation of buffer n, ``~n`` for its end."""
        self.begun = 0
        """Events before the step."""
        self.is_away: Callable[[Tensor], bool] = lambda _: False
        """Whether a tensor that the program keeps lies in host memory, and so is none of the device's."""

    @property
    def now(self) -> int:
        """Events so far."""
        return len(self._events)

    def number(self, tensor: Tensor) -> int:
        """The buffer of a tensor."""
        storage = tensor.untyped_storage()
        address = identity_of(storage)
        found = self._numbers.get(address)
        return found if found is not None else self._add(storage, address)

    def _add(self, storage: torch.UntypedStorage, address: int) -> int:
        number = len(self.sizes)
        self.sizes.append(storage.nbytes())
        self.makers.append(self.module)
        self.phases.append(self.phase)
        self.lines.append(program_line())
        self._numbers[address] = number
        # The closure must not hold the storage; the address of a dead one may be reused.
        self._references[number] = weakref.ref(storage, lambda _: self._end(number, address))
        self._events.append(number)
        return number

    def note_scratch(self, sizes: Iterable[float], module: int, num_late_outputs: int = 0) -> None:
        """Records what the kernels took that have just made their outputs, one after another.

        Args:
            sizes: bytes of each.
            module: that called them.
            num_late_outputs: outputs, the last of them, that were allocated while it was held.
        """
        for size in sizes:
            self.scratch.append((self.now, int(size), self.phase, module, program_line(), num_late_outputs))

    def alias(self, twin: Tensor, of: Tensor) -> None:
        """Declares that a tensor stands for the memory of another one."""
        storage = twin.untyped_storage()
        address = identity_of(storage)
        if address not in self._numbers:
            number = self._numbers[address] = self.number(of)

            def end(_: object) -> None:
                del self._aliases[address]
                if self._numbers.get(address) == number:
                    del self._numbers[address]

            self._aliases[address] = weakref.ref(storage, end)

    def _end(self, number: int, address: int) -> None:
        if self._numbers.get(address) == number:
            del self._numbers[address]
        self._references.pop(number, None)
        self._events.append(~number)

    def give_role(self, tensor: Tensor, role: Role) -> None:
        """Sets what a tensor's memory is used for."""
        if tensor.layout is torch.strided and not self.is_away(tensor):
            number = self.number(tensor)
            self.roles.setdefault(number, role)
            self._note_rows(number, tensor, role)

    def alive(self) -> set[int]:
        """Buffers that are alive now."""
        return set(self._references)

    def known(self, tensor: Tensor) -> int | None:
        """The buffer of a tensor, if it was seen before."""
        return self._numbers.get(identity_of(tensor.untyped_storage()))

    def live_bytes(self) -> int:
        """Bytes that are alive now."""
        return sum(self.sizes[number] for number in self._references)

    def mark(self) -> None:
        """Records live buffers at the start of a backward pass."""
        self.marks.append(self.alive())
        for tensor, name, frame in tensors_in(frames()):
            if tensor.layout is torch.strided:
                number = self.known(tensor)
                if number is not None and number not in self.held:
                    self.held[number] = (name, *lines_of(frame, name))

    def saved(self) -> set[int]:
        """Activations alive at the start of a backward pass; of several passes, those of the one with most."""
        kept = [{number for number in mark if number not in self.roles} for mark in self.marks]
        return max(kept, key=lambda numbers: sum(self.sizes[number] for number in numbers), default=set[int]())

    def begin(self) -> None:
        """Starts the step: live buffers belong to it, freed ones do not."""
        self.marks.clear()
        self.held.clear()
        self.old_roles.clear()
        self.begun = len(self._events)

    def note_roles(self, tensors: Iterable[Tensor], role: Role) -> None:
        """Records what tensors are used for when the step begins, which may replace them."""
        for tensor in tensors:
            number = self.known(tensor)
            if number is not None:
                self.old_roles[number] = role
                self._note_rows(number, tensor, role)

    def _note_rows(self, number: int, tensor: Tensor, role: Role) -> None:
        """Records the first axis of what ranks share and has a buffer for itself: one of many in a buffer does not."""
        if role in ("weight", "gradient", "state") and tensor.dim() and tensor.nbytes == self.sizes[number]:
            self.rows.setdefault(number, tensor.shape[0])

    def lives(self) -> tuple[list[int], dict[int, int]]:
        """Events by which each buffer was allocated, and by which those that died were freed."""
        births, deaths = [0] * len(self.sizes), dict[int, int]()
        for at, event in enumerate(self._events):
            if event >= 0:
                births[event] = at
            else:
                deaths[~event] = at
        return births, deaths

    def peaks(self) -> tuple[int, int]:
        """Most bytes of activations and of everything that were alive at once since the step began."""
        live = peak = activations = peak_activations = 0
        for at, event in enumerate(self._events):
            number, sign = (event, 1) if event >= 0 else (~event, -1)
            size = sign * self.sizes[number]
            live += size
            if number not in self.roles:
                activations += size
            if at + 1 >= self.begun:
                peak = max(peak, live)
                peak_activations = max(peak_activations, activations)
        return peak_activations, peak

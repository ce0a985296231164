"""The memory of an arena: one tensor, its views, and whether anyone but the arena still holds some of it."""

from __future__ import annotations

import threading
import weakref

import torch
from torch import Tensor

import stoker.train.arena.torch_private as private
from stoker.train.arena.recording import Leaf


class Arena:
    """One piece of memory for the planned buffers of graphs that run in turn.

    Nothing is taken while a tensor that is not the arena's own lies in it: torch counts the holders of a piece of
    memory: autograd, a hook, a view that a program keeps. So what escapes is never overwritten.

    Note: safe for several threads; a pass holds the arena from `take` to `leave`.
    """

    def __init__(self) -> None:
        self._whole = torch.empty(0, dtype=torch.uint8)
        self._storage = self._whole.untyped_storage()
        self._own = private.holders_of(self._storage)  # tensors of the arena itself
        self._lock = threading.Lock()
        self._runs = False
        self.tenant: object = None
        """What took it last."""
        self.used_up = False
        """Whether a backward pass may have overwritten what the tenant saved."""

    @property
    def nbytes(self) -> int:
        """Bytes that it holds."""
        return self._storage.nbytes()

    def num_foreign(self) -> int:
        """Tensors in it that are not its own."""
        return private.holders_of(self._storage) - self._own

    def take(self, tenant: object, nbytes: int) -> bool:
        """Whether a forward pass may run in it, with at least so many bytes; then it is held."""
        with self._lock:
            if self._runs or self.num_foreign() != 0:
                return False
            if nbytes > self.nbytes:
                # Its views stay valid: they refer to the storage. Freed first, since nothing of it is needed.
                self._storage.resize_(0)
                self._storage.resize_(nbytes)
            self._runs, self.tenant, self.used_up = True, tenant, False
            return True

    def take_back(self, tenant: object, num_saved: int) -> bool:
        """Whether a backward pass may run in it: only what the tenant's forward pass saved is held, by nobody else."""
        with self._lock:
            if self._runs or self.tenant is not tenant or self.used_up or self.num_foreign() != num_saved:
                return False
            self._runs = self.used_up = True
            return True

    def leave(self) -> None:
        """Ends a pass."""
        with self._lock:
            self._runs = False

    def holds(self, value: Tensor) -> bool:
        """Whether a tensor lies in it."""
        start = self._storage.data_ptr()
        return start != 0 and start <= value.data_ptr() < start + self.nbytes

    def at(self, value: Tensor) -> int:
        """Bytes from the arena's start to a tensor's."""
        return value.data_ptr() - self._storage.data_ptr()

    def view(self, leaf: Leaf, offset: int) -> Tensor:
        """A tensor in the arena, which must be taken, and be large enough.

        Each has a separate version counter: autograd would take a write to one of several that share it for a change
        of all.
        """
        # Not an inference tensor, even if the first pass is one of inference mode: that can't be written outside of it.
        with torch.inference_mode(False), torch.no_grad():
            found = torch.empty(0, dtype=leaf.dtype)
            start = offset // found.element_size() + leaf.offset
            return found.set_(self._storage, start, leaf.size, leaf.stride)

    def own(self, count: int) -> None:
        """Counts so many more tensors as its own."""
        with self._lock:
            self._own += count

    def give_up(self, views: list[Tensor]) -> None:
        """Forgets its own tensors, the last references to them."""
        with self._lock:
            self._own -= len(views)
            views.clear()


class Views:
    """Tensors of an arena's own, as long as this lives."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._made: list[Tensor] = []
        weakref.finalize(self, arena.give_up, self._made).atexit = False

    def at(self, leaf: Leaf, offset: int) -> Tensor:
        """One more."""
        found = self._arena.view(leaf, offset)
        self.hold(found)
        return found

    def hold(self, value: Tensor) -> None:
        """Takes a tensor that was made of another one as the arena's own, if it lies in it."""
        if self._arena.holds(value) and not any(value is each for each in self._made):
            self._made.append(value)
            self._arena.own(1)

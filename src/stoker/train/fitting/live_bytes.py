# pyright: reportUnknownMemberType=false
"""Bytes of tensors that are alive in a running program, counted while it runs: the device of a program that has none.

Storages are counted from the operation that first uses or makes them until they are freed, with the bytes that they
have at the time: FSDP2 empties those of gathered weights and fills them again. Of a tensor in shares its rows count.
What operations allocate and free within themselves is not seen; it belongs to no tensor of the program. What a loader
makes counts once an operation uses it: data that wait in host memory would not lie on a device.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stoker.core.patching import Patches
from stoker.train.torch_private import (
    TorchDispatchMode,
    identity_of,
    indices_of,
    inner_tensors,
    tree_leaves,
    values_of,
)


class _Counted(weakref.ref[torch.UntypedStorage]):
    """A storage that is counted."""

    nbytes = 0
    """As many of them."""


class LiveBytes(TorchDispatchMode):
    """Counts storages that are alive after each operation, while it is entered.

    Args:
        known: tensors that are alive already.
        waits: asked at each operation whether what it makes lies in host memory.
    """

    def __init__(self, known: Iterable[Tensor] = (), *, waits: Callable[[], bool] = lambda: False) -> None:
        super().__init__()
        self._waits = waits
        self._live: dict[int, _Counted] = {}
        self._patches = Patches("bytes of storages that change their size")
        self.now = 0
        """Bytes that are alive."""
        self.peak = 0
        """Most bytes that were alive at once, since :meth:`begin`."""
        self._add(known)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Each call is spared a wrapper."""
        return False

    def __enter__(self) -> Self:
        super().__enter__()
        self._patches.set(torch.UntypedStorage, "resize_", self._resizing(torch.UntypedStorage.resize_))
        return self

    def __exit__(self, *error: Any) -> None:
        self._patches.restore()
        super().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Runs one operation; what it gives back is alive from now on."""
        out = func(*args, **(kwargs or {}))
        if not self._waits():
            self._add(leaf for leaf in tree_leaves((args, kwargs, out)) if isinstance(leaf, Tensor))
        return out

    def begin(self) -> int:
        """Starts a new peak from what is alive; returns the one before."""
        before, self.peak = self.peak, self.now
        return before

    def _add(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            if tensor.layout is torch.sparse_coo:
                self._add((indices_of(tensor), values_of(tensor)))
            elif inner := inner_tensors(tensor):
                self._add(inner)
            elif tensor.layout is torch.strided and tensor.device.type != "meta":
                self._count(tensor.untyped_storage())

    def _count(self, storage: torch.UntypedStorage) -> None:
        address = identity_of(storage)
        found = self._live.get(address)
        if found is None:

            def end(reference: _Counted) -> None:
                self._set(reference, 0)
                if self._live.get(address) is reference:
                    del self._live[address]

            # The address of a dead storage may be reused.
            found = self._live[address] = _Counted(storage, end)
        self._set(found, storage.nbytes())

    def _set(self, counted: _Counted, nbytes: int) -> None:
        self.now += nbytes - counted.nbytes
        counted.nbytes = nbytes
        self.peak = max(self.peak, self.now)

    def _resizing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """No operation: what torch calls to free the memory of a tensor that stays."""

        @functools.wraps(original)
        def resize(storage: torch.UntypedStorage, nbytes: int) -> Any:
            found = original(storage, nbytes)
            if (counted := self._live.get(identity_of(storage))) is not None:
                self._set(counted, storage.nbytes())
            return found

        return resize


def peak_of_step(module: nn.Module, optimizer: Optimizer | None, inputs: Any, loss: Callable[[], Tensor]) -> int:
    """The peak of one step after a first one, which makes the optimizer's state; gradients are dropped in between."""
    peak = 0
    for measured in (False, True):
        states = tree_leaves(list(optimizer.state.values())) if optimizer else []
        known = [*module.parameters(), *module.buffers(), *states, *tree_leaves(inputs)]
        with LiveBytes(leaf for leaf in known if measured and isinstance(leaf, Tensor)) as live:
            loss().backward()
            if optimizer is not None:
                optimizer.step()
        module.zero_grad()
        peak = live.peak
    return peak

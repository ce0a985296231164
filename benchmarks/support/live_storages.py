"""Bytes of tensors that are alive in a real run on this CPU, counted beside the run.

What operations allocate and free within themselves is not seen; it belongs to no tensor of the program.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveStorages(TorchDispatchMode):
    """Counts storages that are alive after each operation.

    Args:
        known: tensors that are alive already.
    """

    def __init__(self, known: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0
        """Most bytes that were alive at once."""
        self._add(known)

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Runs one operation; what it gives back is alive from now on."""
        out = func(*args, **(kwargs or {}))
        self._add(leaf for leaf in tree_leaves((args, out)) if isinstance(leaf, Tensor))
        return out

    def _add(self, tensors: Iterable[Tensor]) -> None:
        self._live = {address: found for address, found in self._live.items() if not found[0].expired()}
        for tensor in tensors:
            if tensor.layout is torch.sparse_coo:
                self._add((tensor._indices(), tensor._values()))
                continue
            storage = tensor.untyped_storage()
            if storage._cdata not in self._live:
                self._live[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self.peak = max(self.peak, sum(size for _, size in self._live.values()))

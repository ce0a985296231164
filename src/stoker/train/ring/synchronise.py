"""The first synchronisation of ``DistributedDataParallel``, by chain, for one that is made with ``init_sync=False``.

DDP compares the shapes of its parameters on all ranks, and then copies parameters and buffers from rank 0. So does
this; what DDP ignores is ignored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
import torch.distributed as distributed

from stoker.core.errors import ExchangeError
from stoker.train.ring.groups import exchange_of, group_of
from stoker.train.ring.torch_private import ignored_names
from stoker.train.ring.transport import GroupAssembly

_BUNDLE_BYTES = 1 << 20
"""Small tensors go together: a model has hundreds of a few hundred bytes."""


def synchronise(module: torch.nn.Module, group: distributed.ProcessGroup | None = None) -> None:
    """Copies parameters and buffers of a group's first rank to all its ranks. A collective.

    Args:
        module: the same on all ranks, before it is wrapped; on the CPU.
        group: by default all ranks.

    Raises:
        ExchangeError: the modules differ in names, shapes or dtypes, or a rank is lost.
        ValueError: a tensor is not on the CPU.
    """
    group = group_of(group)
    state = dict(synchronised(module))
    _compare(state, GroupAssembly(group))
    exchange = exchange_of(group)
    with torch.no_grad():
        large = [tensor for tensor in state.values() if tensor.nbytes > _BUNDLE_BYTES]
        bundles = list(_bundles([tensor for tensor in state.values() if tensor.nbytes <= _BUNDLE_BYTES]))
        packed = [_packed(bundle) for bundle in bundles]
        exchange.broadcast([*large, *packed], name="first synchronisation")
        for bundle, data in zip(bundles, packed, strict=True):
            _unpack(bundle, data)


def synchronised(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and tensors that DDP copies at first: parameters and buffers, each once, but for those it ignores."""
    ignored = ignored_names(module)
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if name not in ignored:
            yield name, tensor


def digest_of(state: dict[str, torch.Tensor]) -> bytes:
    """A hash of names, shapes and dtypes, in order."""
    rows = [f"{name} {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in state.items()]
    return hashlib.sha256("\n".join(rows).encode()).digest()


def _compare(state: dict[str, torch.Tensor], assembly: GroupAssembly) -> None:
    digests = assembly.gather(digest_of(state))
    differing = [rank for rank, digest in zip(assembly.ranks, digests, strict=True) if digest != digests[0]]
    if differing:
        raise ExchangeError(
            f"`module` must have the same parameters and buffers on all ranks, and rank {differing[0]} has others than "
            f"rank {assembly.ranks[0]}; print names and shapes of module.named_parameters() on both",
            rank=differing[0],
        )


def _bundles(tensors: list[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    bundle: list[torch.Tensor] = []
    size = 0
    for tensor in tensors:
        if bundle and size + tensor.nbytes > _BUNDLE_BYTES:
            yield bundle
            bundle, size = [], 0
        bundle.append(tensor)
        size += tensor.nbytes
    if bundle:
        yield bundle


def _packed(bundle: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.detach().reshape(-1).contiguous().view(torch.uint8) for tensor in bundle])


def _unpack(bundle: list[torch.Tensor], packed: torch.Tensor) -> None:
    at = 0
    for tensor in bundle:
        part = packed[at : at + tensor.nbytes].clone()  # aligned for its dtype
        tensor.detach().copy_(part.view(tensor.dtype).view(tensor.shape))
        at += tensor.nbytes

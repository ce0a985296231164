"""The first synchronisation of ``DistributedDataParallel``, by chain, for one that is made with ``init_sync=False``.

DDP compares the shapes of its parameters on all ranks, and then copies parameters and buffers from rank 0. So does
this; what DDP ignores is ignored. A chain takes hardly longer for eight ranks than for two, gloo's broadcast several
times as long.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator

import msgspec
import torch
import torch.distributed as distributed

from stoker.core.errors import ExchangeError
from stoker.core.mishaps import reraise_from_handler
from stoker.train.ring.groups import exchange_of, group_of, opened, release
from stoker.train.ring.torch_private import ignored_names
from stoker.train.ring.transport import GroupAssembly, RingExchange

_BUNDLE_BYTES = 1 << 20
"""Small tensors go together: a model has hundreds of a few hundred bytes."""
_LEAST_RANKS, _LEAST_BYTES = 3, 1 << 20
"""Below either a chain saves less than its connections take."""
_MOST_WORDS = 400
"""Bytes of a reason: what an assembly gathers of a rank holds it."""


class CopyOffer(msgspec.Struct, frozen=True, array_like=True):
    """What a rank says of its module before it is copied.

    Attributes:
        digest: of names, shapes and dtypes.
        size: bytes.
        why_not: why sockets can't carry it; empty if they can.
    """

    digest: bytes
    size: int
    why_not: str


def copied_by_chain(
    module: torch.nn.Module, group: distributed.ProcessGroup | None, tell: Callable[[str], object],
    *, buffers: bool = True,
) -> bool:  # fmt: skip
    """Copies parameters and buffers of a group's first rank to all others, where a chain is quicker and all ranks can.

    A collective that ends alike on all ranks. Where it does not copy, DDP is to do so itself, modules that differ
    among them, of which it has its own words; a part of the first rank's bytes may be there already.

    Args:
        module: before it is wrapped.
        group: by default all ranks.
        tell: called on the first rank with why DDP copies, unless that is as quick.
        buffers: whether these are copied too.

    Returns:
        Whether all ranks have the first one's parameters and buffers.
    """
    group = group_of(group)
    if group.size() < _LEAST_RANKS or str(distributed.get_backend(group)) != "gloo":
        return False
    assembly = GroupAssembly(group)
    state: dict[str, torch.Tensor] = {}
    try:
        state = dict(synchronised(module, buffers=buffers))
        offer = CopyOffer(digest_of(state), sum(map(_bytes_of, state.values())), _cut(_why_not(state)))
    except Exception as error:  # the others wait for this rank's word
        reraise_from_handler(error)
        offer = CopyOffer(b"", 0, _cut(f"{type(error).__name__}: {error}"))
    offers = [
        msgspec.msgpack.decode(each, type=CopyOffer) for each in assembly.gather(msgspec.msgpack.encode(offer))
    ]  # fmt: skip
    trouble = next((f"rank {rank}: {each.why_not}" for rank, each in enumerate(offers) if each.why_not), "")
    if not trouble and any(each.digest != offer.digest or each.size < _LEAST_BYTES for each in offers):
        return False
    return _told(trouble or _tried(state, group, assembly), assembly, tell)


def _told(trouble: str, assembly: GroupAssembly, tell: Callable[[str], object]) -> bool:
    if trouble and not assembly.rank:
        tell(f"the first synchronisation goes by torch's own broadcast: {trouble}")
    return not trouble


def _tried(state: dict[str, torch.Tensor], group: distributed.ProcessGroup, assembly: GroupAssembly) -> str:
    """Copies, and returns why not all ranks have everything; empty if they have."""
    was_open, why = opened(group) is not None, ""
    try:
        _copy(state, exchange_of(group))
    except Exception as error:
        reraise_from_handler(error)
        why = f"{error}" or type(error).__name__
        if (exchange := opened(group)) is not None:
            exchange.close()  # the others may wait for its bytes
    said = [each.decode() for each in assembly.gather(_cut(why).encode())]
    trouble = next((f"rank {rank}: {each}" for rank, each in enumerate(said) if each), "")
    if trouble or not was_open:
        release(group)
    return trouble


def _why_not(state: dict[str, torch.Tensor]) -> str:
    for name, tensor in state.items():
        if tensor.device.type != "cpu":
            return f"{name} is on {tensor.device}, and sockets carry tensors on the CPU"
        is_plain = type(tensor.detach()) is torch.Tensor and tensor.layout is torch.strided
        if not is_plain or tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
            return f"{name} is no plain tensor"
    return ""


def _cut(words: str) -> str:
    return words.encode()[:_MOST_WORDS].decode(errors="ignore")


def _bytes_of(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


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
    _copy(state, exchange_of(group))


def _copy(state: dict[str, torch.Tensor], exchange: RingExchange) -> None:
    with torch.no_grad():
        large = [tensor for tensor in state.values() if tensor.nbytes > _BUNDLE_BYTES]
        bundles = list(_bundles([tensor for tensor in state.values() if tensor.nbytes <= _BUNDLE_BYTES]))
        packed = [_packed(bundle) for bundle in bundles]
        exchange.broadcast([*large, *packed], name="first synchronisation")
        for bundle, data in zip(bundles, packed, strict=True):
            _unpack(bundle, data)


def synchronised(module: torch.nn.Module, *, buffers: bool = True) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and tensors that DDP copies at first: parameters and buffers, each once, but for those it ignores."""
    ignored = ignored_names(module)
    for name, tensor in (*module.named_parameters(), *(module.named_buffers() if buffers else ())):
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

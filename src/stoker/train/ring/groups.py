"""The exchange and the lookout of each process group: connected once, closed with it, or at a program's exit."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as distributed
from torch.distributed import distributed_c10d

from stoker.core.patching import Patches
from stoker.core.processes.forking import ForkedLock, at_fork
from stoker.train.ring.blocks import DEFAULT_BLOCK_BYTES
from stoker.train.ring.lookout import Lookout
from stoker.train.ring.torch_private import timeout_s
from stoker.train.ring.transport import GroupAssembly, RingExchange

_patches = Patches("connections between ranks end with their process group")
_lock = ForkedLock()
_open: weakref.WeakKeyDictionary[distributed.ProcessGroup, RingExchange] = weakref.WeakKeyDictionary()
_lookouts: weakref.WeakKeyDictionary[distributed.ProcessGroup, Lookout] = weakref.WeakKeyDictionary()


def exchange_of(group: distributed.ProcessGroup | None = None) -> RingExchange:
    """The exchange of a process group, which is connected at the first call: a collective of the group.

    It is closed by ``destroy_process_group``, at the program's exit, or by :meth:`RingExchange.close`.

    Args:
        group: with gloo, or another backend for tensors on the CPU; by default all ranks.

    Raises:
        ExchangeError: its ranks can't connect.
        ValueError: there is no process group, or this rank is not in it.
    """
    group = group_of(group)
    return opened(group) or connect(group)


def opened(group: distributed.ProcessGroup) -> RingExchange | None:
    """The exchange of a process group, if it is connected."""
    with _lock:
        found = _open.get(group)
    return None if found is None or found.is_closed else found


def connect(
    group: distributed.ProcessGroup | None = None,
    *,
    order: list[int] | None = None,
    islands: Sequence[Sequence[int]] = (),
    block_bytes: int = DEFAULT_BLOCK_BYTES,
    further: Mapping[str, Sequence[int]] | None = None,
) -> RingExchange:
    """Connects a process group in an order and with blocks that differ; a collective. It replaces an earlier one.

    Arguments as :class:`RingExchange`, errors as :func:`exchange_of`.
    """
    group = group_of(group)
    release(group)
    made = RingExchange(
        GroupAssembly(group), timeout_s=timeout_s(group), order=order, islands=islands, block_bytes=block_bytes,
        further=further,
    )  # fmt: skip
    with _lock:
        _open[group] = made
        _install()
    return made


def lookout_of(group: distributed.ProcessGroup) -> Lookout:
    """The lookout of a process group, which is connected at the first call: a collective.

    It is closed as the exchange is; errors as :func:`exchange_of`.
    """
    with _lock:
        found = _lookouts.get(group)
    if found is None or found.is_closed:
        found = Lookout(GroupAssembly(group), timeout_s(group))
        with _lock:
            _lookouts[group] = found
            _install()
    return found


def group_of(group: distributed.ProcessGroup | None) -> distributed.ProcessGroup:
    """The group itself; all ranks for None.

    Raises:
        ValueError: there is none, or this rank is not in it.
    """
    if group is None and distributed.is_initialized():
        group = distributed.group.WORLD
    if group is None or group.rank() < 0:
        raise ValueError(
            "`group` must be a process group that this rank is in, got none; call torch.distributed.init_process_group"
        )
    return group


def release(group: distributed.ProcessGroup | None = None) -> None:
    """Closes the exchange of a group, or of all groups."""
    _end(_open, group)


def leave(group: distributed.ProcessGroup | None = None) -> None:
    """Closes the lookout of a group, or of all groups."""
    _end(_lookouts, group)


def _end(
    held: weakref.WeakKeyDictionary[distributed.ProcessGroup, RingExchange]
    | weakref.WeakKeyDictionary[distributed.ProcessGroup, Lookout],
    group: distributed.ProcessGroup | None,
) -> None:
    with _lock:
        chosen = list(held) if group is None else [group]
        ended = [found for each in chosen if (found := held.pop(each, None)) is not None]
        if not _open and not _lookouts:
            _patches.restore()
    for each in ended:
        each.close()


def _install() -> None:
    """Lets ``destroy_process_group`` close the exchange first: both of torch's names for it."""
    if _patches.names:
        return
    original = distributed_c10d.destroy_process_group

    def destroy_process_group(group: Any = None) -> None:
        whole = group is None or group is distributed.group.WORLD
        release(None if whole else group)
        leave(None if whole else group)
        original(group)

    _patches.set(distributed_c10d, "destroy_process_group", destroy_process_group)
    if distributed.destroy_process_group is original:
        _patches.set(distributed, "destroy_process_group", destroy_process_group)


def _forget() -> None:
    """In a forked child: the connections are the parent's."""
    _open.clear()
    _lookouts.clear()


at_fork(_forget)


def broadcast(
    tensors: list[torch.Tensor] | tuple[torch.Tensor, ...],
    group: distributed.ProcessGroup | None = None,
    source: int = 0,
) -> None:
    """Copies tensors from one rank to all others of a group, block by block along a chain.

    Args:
        tensors: of the same shapes and dtypes on all ranks, on the CPU; overwritten on all but the source.
        group: by default all ranks.
        source: rank in the group.

    Raises:
        ExchangeError: a rank is lost, or can't connect.
        ValueError: a tensor is not on the CPU, or an argument breaks its rule.
    """
    exchange_of(group).broadcast(tensors, source)

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeArgument=false
"""Optimizer states in shares (ZeRO-1): each rank updates some weights, keeps their state alone, and gets the others.

A program's optimizer stays the one it is. During its step it sees this rank's share of its parameters; behind the step
ranks gather the weights. All else is as under DDP: weights and gradients are whole on each rank.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from stoker.core.placement.shares import cut_of, owners_of
from stoker.train import torch_private
from stoker.train.ring.torch_private import timeout_s
from stoker.train.ring.transport import GroupAssembly
from stoker.train.sharding.forwards import ForwardCount
from stoker.train.sharding.gathering import BUCKET_BYTES, Piece, WeightGathering, flat_of
from stoker.train.sharding.refusing import check_states, weights_of
from stoker.train.state import optimizers
from stoker.train.state.agreeing import agreed
from stoker.train.state.leaving import watch
from stoker.train.state.optimizers import Occasion, is_by_element, is_by_parameter
from stoker.train.state.packing import Plain, packed, unpacked
from stoker.train.state.service import PartService

Refuse = Callable[[str], object]
"""Called with why an optimizer's states stay whole."""


def shard_states(
    ddp: DistributedDataParallel, *, by_parameter: Sequence[type[Optimizer]] = (), refused: Refuse | None = None,
    bucket_bytes: int = BUCKET_BYTES,
) -> StateShares:  # fmt: skip
    """Shares the states of all optimizers of a replicated module among its ranks. Collective.

    Weights and losses stay bit for bit those of DDP; a rank holds 1/N of the states. A rank alone may evaluate and
    call ``state_dict()`` of the module and its optimizers, which have the states of all ranks; loading takes them, on
    all ranks.

    Args:
        ddp: replicated on two ranks or more; its optimizers may be there already, or come later.
        by_parameter: classes of optimizers, besides those of ``torch.optim``, of which the program knows that each
            weight depends on its own gradients alone.
        refused: called with the reason for an optimizer whose states stay whole; None to raise it as a ``TypeError``
            when the optimizer first steps.
        bucket_bytes: memory for the weights that ranks gather at a time.

    Returns:
        What is undone by :meth:`StateShares.undo`.

    Raises:
        ExchangeError: the ranks can't connect.
        ValueError: a weight does not fill its memory, or ranks may leave others behind.
    """
    shares = StateShares(ddp, tuple(by_parameter), refused, bucket_bytes)
    shares.serve()
    return shares


class _Share:
    """This rank's share of one optimizer's weights.

    Args:
        key: names the optimizer on all ranks.
    """

    def __init__(self, key: str) -> None:
        self.key = key
        self.owners: dict[nn.Parameter, int | None] = {}
        """The rank that updates each weight; None for one that is cut."""
        self.parts: dict[nn.Parameter, nn.Parameter] = {}
        """What stands in a step for a weight of which this rank updates a part."""
        self.kept: list[tuple[dict[str, Any], list[Any]]] = []
        """Groups of parameters during a step, and what they hold outside of it."""
        self.gathering: WeightGathering | None = None
        self.handles: list[Any] = []


class StateShares:
    """The states of the optimizers that train one replicated module; see :func:`shard_states`."""

    def __init__(
        self, ddp: DistributedDataParallel, by_parameter: tuple[type[Optimizer], ...], refused: Refuse | None,
        bucket_bytes: int,
    ) -> None:  # fmt: skip
        untyped = cast("Any", ddp)
        self._ddp, self._by_parameter, self._refused, self._bucket_bytes = ddp, by_parameter, refused, bucket_bytes
        self._group: dist.ProcessGroup = untyped.process_group
        self._rank, self._ranks = dist.get_rank(self._group), dist.get_world_size(self._group)
        module: nn.Module = untyped.module
        check_states(module)
        self._names = weights_of(module)
        self._sparse = {
            each.weight
            for each in module.modules()
            if isinstance(each, (nn.Embedding, nn.EmbeddingBag)) and each.sparse
        }
        self._shares: dict[Optimizer, _Share] = {}
        self._whole: set[Optimizer] = set()
        """Optimizers whose states stay whole."""
        self._service: PartService | None = None
        self._undo: list[Callable[[], object]] = []

    @property
    def version(self) -> int:
        """Steps and loads of optimizers so far."""
        return 0 if self._service is None else self._service.standing.version

    @property
    def bucket_bytes(self) -> int:
        """Memory that gathering takes, of the optimizer that takes most."""
        return max((each.gathering.bucket_bytes for each in self._shares.values() if each.gathering), default=0)

    def serve(self) -> None:
        """Begins. Collective."""
        limit_s = timeout_s(self._group)
        self._service = PartService(GroupAssembly(self._group), self, timeout_s=limit_s)
        watch.add(self._service, limit_s)
        optimizers.add(self)
        handle = self._ddp.register_forward_pre_hook(ForwardCount(self._service))
        self._ddp.join_hook = _no_join
        self._undo = [handle.remove, functools.partial(delattr, self._ddp, "join_hook")]

    def undo(self) -> None:
        """Makes the states whole on all ranks and leaves them to torch. Collective."""
        found: list[tuple[Optimizer, nn.Parameter, dict[str, Any] | None]] = []
        for optimizer, share in self._shares.items():
            self._leave(optimizer, share)
            for number, parameter in enumerate(_parameters(optimizer)):
                own = optimizer.state.get(parameter)
                found.append((optimizer, parameter, self._others_state(share, number, parameter, own)))
        # A rank that is through still serves its share to those that are not.
        dist.barrier(self._group)
        for optimizer, parameter, whole in found:
            if whole:
                optimizer.state.pop(parameter, None)  # in the order of weights
                optimizer.state[parameter] = whole
        self.close()

    def close(self) -> None:
        """Takes back all changes; states stay in shares. Of this rank alone."""
        optimizers.discard(self)
        for optimizer, share in self._shares.items():
            self._leave(optimizer, share)
            for handle in share.handles:
                handle.remove()
        self._shares.clear()
        while self._undo:
            self._undo.pop()()
        if self._service is not None:
            self._service.close()

    # What sees optimizers.

    def adopts(self, optimizer: Optimizer, occasion: Occasion) -> bool:
        """Whether an optimizer trains weights of the module. One that only saves has whole states yet."""
        if occasion == "save" or optimizer in self._whole:
            return False
        if not any(parameter in self._names for parameter in _parameters(optimizer)):
            return False
        if reason := _why_not(optimizer, self._by_parameter):
            if self._refused is None:
                raise TypeError(reason)
            self._whole.add(optimizer)
            self._refused(reason)
            return False
        names = [self._names.get(parameter, "") for parameter in _parameters(optimizer)]
        key = f"{type(optimizer).__name__} {zlib.crc32(' '.join(names).encode()):08x}"
        alike = sum(each.key.startswith(key) for each in self._shares.values())
        self._shares[optimizer] = share = _Share(f"{key} {alike}")
        self._deal(optimizer, share)
        self._drop(optimizer, share)
        return True

    def settle(self, optimizer: Optimizer) -> None:
        """Ends a step that has raised."""
        self._leave(optimizer, self._shares[optimizer])

    def before_step(self, optimizer: Optimizer) -> None:
        """Waits for all ranks: none changes what another one may still ask for. Collective."""
        share = self._shares[optimizer]
        self._leave(optimizer, share)
        if any(parameter not in share.owners for parameter in _parameters(optimizer)):
            self._deal(optimizer, share)
            self._drop(optimizer, share)
        subject = f"a step of {share.key} on {len(share.owners)} weights"
        then = "step alike on all ranks"
        agreed(self._group, subject, self.version, where="where optimizer states are shared", then=then)
        for handle in share.handles:
            handle.remove()
        # The program's own hooks see all weights: ours is the last one before the step and the first one behind it.
        share.handles = [
            optimizer.register_step_pre_hook(functools.partial(self._enter, share)),
            torch_private.first_after_step(optimizer, functools.partial(self._gather, share)),
        ]

    def after_step(self, _optimizer: Optimizer) -> None:
        """Nothing: weights have been gathered before the program's own hooks."""

    def make_whole(self, optimizer: Optimizer, found: dict[str, Any]) -> dict[str, Any]:
        """A state dict with the states of all ranks. Of this rank alone."""
        share = self._shares[optimizer]
        numbers = [number for group in found["param_groups"] for number in group["params"]]
        state: dict[Any, Any] = {}
        for number, parameter in enumerate(_parameters(optimizer)):
            values = self._others_state(share, number, parameter, found["state"].get(numbers[number]))
            if values:
                state[numbers[number]] = values
        # Keys of programs, which are no numbers, stay.
        state.update({key: value for key, value in found["state"].items() if key not in numbers})
        return {**found, "state": state}

    def take_own(self, optimizer: Optimizer, given: dict[str, Any]) -> dict[str, Any]:
        """A state dict with this rank's share."""
        share = self._shares[optimizer]
        numbers = [number for group in given["param_groups"] for number in group["params"]]
        state = dict(given["state"])
        for number, parameter in zip(numbers, _parameters(optimizer), strict=False):
            values = self._own_state(share, parameter, state.pop(number, None))
            if values is not None:
                state[number] = values
        return {**given, "state": state}

    def loaded(self, _optimizer: Optimizer) -> None:
        """Its state is another one, on all ranks."""
        self._change()

    # What other ranks ask for.

    def part(self, name: str) -> memoryview:
        """The state of a weight on this rank (``key:number``); raises ``KeyError``."""
        key, _, number = name.rpartition(":")
        for optimizer, share in self._shares.items():
            if share.key == key:
                parameter = list(_parameters(optimizer))[int(number)]
                return packed(optimizer.state.get(parameter, {}))
        raise KeyError(name)

    # A step.

    def _enter(self, share: _Share, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        """The optimizer has this rank's share; a closure that it calls sees all."""
        self._take(optimizer, share)

        def whole_in(closure: Callable[[], Any]) -> Callable[[], Any]:
            @functools.wraps(closure)
            def call() -> Any:
                self._leave(optimizer, share)
                try:
                    return closure()
                finally:
                    self._take(optimizer, share)

            return call

        # The optimizer itself comes first; what a step is given besides is a closure, or values of torch's own.
        given = tuple(whole_in(each) if place and callable(each) else each for place, each in enumerate(args))
        if callable(closure := kwargs.get("closure")):
            kwargs = {**kwargs, "closure": whole_in(closure)}
        return given, kwargs

    def _gather(self, share: _Share, optimizer: Optimizer, *_: Any) -> None:
        self._leave(optimizer, share)
        if share.gathering is not None:
            share.gathering.gather()
        self._change()

    def _take(self, optimizer: Optimizer, share: _Share) -> None:
        for group in optimizer.param_groups:
            share.kept.append((group, group["params"]))
            group["params"] = [own for each in group["params"] if (own := self._own(share, each)) is not None]
        for parameter, part in share.parts.items():
            _move(optimizer, parameter, part)

    def _leave(self, optimizer: Optimizer, share: _Share) -> None:
        if not share.kept:
            return
        while share.kept:
            group, params = share.kept.pop()
            group["params"] = params
        for parameter, part in share.parts.items():
            part.grad = None
            _move(optimizer, part, parameter)

    def _own(self, share: _Share, parameter: nn.Parameter) -> nn.Parameter | None:
        """What this rank updates of a weight: it, a part of it, or nothing."""
        owner = share.owners.get(parameter, self._rank)
        if owner is not None:
            return parameter if owner == self._rank else None
        part = share.parts[parameter]
        start, stop = self._cut(parameter)
        part.data = flat_of(parameter)[start:stop]
        gradient = parameter.grad
        if gradient is not None:
            if gradient.stride() != parameter.stride():
                gradient = torch.empty_like(parameter).copy_(gradient)
            part.grad = flat_of(gradient)[start:stop]
        return part if stop > start else None

    # Shares.

    def _deal(self, optimizer: Optimizer, share: _Share) -> None:
        """Gives the weights that have no owner yet to ranks; alike on all of them."""
        by_element = is_by_element(optimizer, ())
        new = [each for each in _parameters(optimizer) if each not in share.owners]
        dealt = [each for each in new if each in self._names]
        loads = [0] * self._ranks
        for parameter, owner in share.owners.items():
            if parameter in self._names:
                for rank in range(self._ranks) if owner is None else [owner]:
                    loads[rank] += _bytes_of(parameter) // (self._ranks if owner is None else 1)
        owners = owners_of(
            [_bytes_of(each) for each in dealt],
            self._ranks,
            [by_element and each not in self._sparse for each in dealt],
            loads,
        )
        # What DDP does not know is trained by each rank for itself.
        share.owners.update({each: self._rank for each in new if each not in self._names})
        share.owners.update(zip(dealt, owners, strict=True))
        share.parts.update(
            {
                each: nn.Parameter(flat_of(each)[slice(*self._cut(each))])
                for each, owner in zip(dealt, owners, strict=True)
                if owner is None
            }
        )
        pieces: list[list[Piece]] = [[] for _ in range(self._ranks)]
        for parameter, owner in share.owners.items():
            if parameter not in self._names:
                continue
            if owner is not None:
                pieces[owner].append(Piece(parameter, 0, parameter.numel()))
                continue
            for rank, its in enumerate(pieces):
                start, stop = cut_of(parameter.numel(), self._ranks, rank)
                if stop > start:
                    its.append(Piece(parameter, start, stop))
        share.gathering = WeightGathering(self._group, pieces, self._bucket_bytes)

    def _drop(self, optimizer: Optimizer, share: _Share) -> None:
        """Forgets states that other ranks keep."""
        for parameter in _parameters(optimizer):
            if parameter in optimizer.state:
                values = self._own_state(share, parameter, optimizer.state[parameter])
                if values is None:
                    del optimizer.state[parameter]
                else:
                    optimizer.state[parameter] = values

    def _own_state(
        self, share: _Share, parameter: nn.Parameter, values: dict[str, Any] | None
    ) -> dict[str, Any] | None:
        """This rank's share of the whole state of a weight; None for no share."""
        owner = share.owners.get(parameter, self._rank)
        if values is None or (owner is not None and owner != self._rank):
            return None
        if owner is not None:
            return values
        start, stop = self._cut(parameter)
        if start == stop:
            return None
        return {
            name: _as_laid_out(value, parameter)[start:stop].clone() if _is_alike(value, parameter) else value
            for name, value in values.items()
        }

    def _others_state(
        self, share: _Share, number: int, parameter: nn.Parameter, own: dict[str, Any] | None
    ) -> dict[str, Any] | None:
        """The whole state of a weight, with what other ranks keep of it; None where there is none."""
        owner = share.owners.get(parameter, self._rank)
        name = f"{share.key}:{number}"
        if owner is not None:
            return own if owner == self._rank else _placed(self._fetched(owner, name), parameter)
        parts = [
            own or {} if rank == self._rank else self._fetched(rank, name)
            for rank in range(self._ranks)
            if cut_of(parameter.numel(), self._ranks, rank)[1] > cut_of(parameter.numel(), self._ranks, rank)[0]
        ]
        return _joined(parts, parameter)

    def _fetched(self, rank: int, name: str) -> dict[str, Tensor | Plain]:
        assert self._service is not None
        return unpacked(self._service.fetch(rank, name))

    def _cut(self, parameter: nn.Parameter) -> tuple[int, int]:
        return cut_of(parameter.numel(), self._ranks, self._rank)

    def _change(self) -> None:
        if self._service is not None:
            self._service.change_weights()


def _why_not(optimizer: Optimizer, vouched: tuple[type[Optimizer], ...]) -> str:
    """Why an optimizer's states can't be shared; empty if they can."""
    name = type(optimizer).__name__
    if not is_by_parameter(optimizer, vouched):
        return (
            f"`{name}` must update each weight by its own gradients alone for its states to be shared, and is not "
            "known to; use one of torch.optim such as AdamW, or name its class in by_parameter"
        )
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return f"`{name}` must not be differentiable for its states to be shared, got differentiable=True"
    return ""


def _parameters(optimizer: Optimizer) -> Iterator[nn.Parameter]:
    for group in optimizer.param_groups:
        yield from group["params"]


def _bytes_of(parameter: Tensor) -> int:
    return parameter.numel() * parameter.element_size()


def _move(optimizer: Optimizer, source: Tensor, target: Tensor) -> None:
    """What a state is kept under: a weight outside of a step, what stands for it inside."""
    if source in optimizer.state:
        optimizer.state[target] = optimizer.state.pop(source)


def _is_alike(value: object, parameter: Tensor) -> bool:
    """Whether a value of a state has an element for each of the weight's."""
    return isinstance(value, Tensor) and value.shape == parameter.shape and value.dim() > 0


def _as_laid_out(value: Tensor, parameter: Tensor) -> Tensor:
    """Its elements in the order of the weight's memory."""
    return flat_of(torch.empty_like(parameter, dtype=value.dtype).copy_(value))


def _placed(values: dict[str, Any], parameter: Tensor) -> dict[str, Any]:
    """Values where the weight is, laid out as it is."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if _is_alike(value, parameter):
            found[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
        else:
            found[name] = value
    return found


def _joined(parts: Sequence[dict[str, Any]], parameter: Tensor) -> dict[str, Any] | None:
    """A whole state from those of all parts of a weight, in the order of ranks."""
    if not parts or not parts[0]:
        return None
    found: dict[str, Any] = {}
    elements = parameter.numel()
    for name, first in parts[0].items():
        values = [each[name] for each in parts]
        is_part = isinstance(first, Tensor) and first.dim() == 1
        if is_part and sum(value.numel() for value in values) == elements:
            whole = torch.empty_like(parameter, dtype=first.dtype)
            flat_of(whole).copy_(torch.cat([value.to(parameter.device) for value in values]))
            found[name] = whole
        else:
            found[name] = first
    return found


def _no_join(**_: Any) -> Any:
    raise ValueError(
        "`join` must not be used where optimizer states are shared, which needs all ranks in each step; make the "
        "batches even"
    )

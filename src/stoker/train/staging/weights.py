# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeArgument=false
"""The weights of a module in stages: those of this rank, and those of others, which are fetched where they are read.

A weight of another stage stays the parameter that it was, with its name and shape, and has no memory. A rank that reads
it without gradients, to evaluate, save or copy it, gets its values from the rank that has it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stoker.core.errors import ExchangeError
from stoker.train import torch_private
from stoker.train.ring.tensors import memory_of
from stoker.train.state.packing import Plain, packed, unpacked
from stoker.train.state.service import PartService

_FACTS = frozenset({
    "shape", "size", "dim", "ndim", "numel", "nelement", "dtype", "device", "layout", "requires_grad", "grad",
    "is_leaf", "grad_fn", "is_sparse", "is_cuda", "is_cpu", "is_meta", "is_mps", "is_xpu", "is_quantized", "is_mkldnn",
    "is_nested", "names", "stride", "storage_offset", "element_size", "itemsize", "nbytes", "is_contiguous",
    "is_floating_point", "is_complex", "requires_grad_", "retains_grad", "output_nr", "get_device", "is_inference",
    "is_same_size", "__len__", "has_names", "register_hook", "register_post_accumulate_grad_hook", "is_signed",
    "_backward_hooks", "_post_accumulate_grad_hooks", "is_vulkan", "is_ipu", "is_xla", "is_maia", "is_mtia",
    "is_sparse_csr", "__hash__", "_is_view", "is_shared", "__reduce_ex__", "_base",
})  # fmt: skip
"""What is known of a weight without its values."""
_COPIES = frozenset({"data", "detach", "detach_", "__deepcopy__", "cpu", "numpy", "tolist", "item"})
"""Reads that no gradient goes through."""


@dataclass(frozen=True, slots=True)
class StagedWeight:
    """A weight and the stages that use it.

    Attributes:
        name: in the module; the first one of a tied weight.
        parameter: which the program knows.
        places: modules that use it, with its name in each.
        stages: that keep it; the first one serves it.
    """

    name: str
    parameter: nn.Parameter
    places: tuple[tuple[nn.Module, str], ...]
    stages: tuple[int, ...]


class ElsewhereWeight(nn.Parameter):
    """A weight that another rank keeps: :class:`StagedWeights` makes a program's parameter one."""

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        if id(self) not in memo:
            memo[id(self)] = nn.Parameter(_owner_of(self).fetched(self), self.requires_grad)
        return memo[id(self)]

    def __reduce_ex__(self, protocol: Any) -> Any:
        whole = nn.Parameter(_owner_of(self).seen(self), self.requires_grad)
        return whole.__reduce_ex__(protocol)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"Parameter of another stage, of {tuple(self.shape)}"

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        name = _name_of(func)
        plain: Any = nn.Parameter.__torch_function__
        if name in _FACTS:
            return plain(func, types, args, given)
        first = args[0] if args else None
        weight = next(each for each in torch_private.tree_leaves((args, given)) if isinstance(each, ElsewhereWeight))
        if isinstance(first, ElsewhereWeight) and _writes(func, name):
            return _owner_of(first).written(first, name)
        if name not in _COPIES and torch.is_grad_enabled() and weight.requires_grad:
            owner = _owner_of(weight)
            raise ExchangeError(
                f"`{owner.by_parameter[weight].name}` must be used for training by calling DistributedDataParallel, on "
                f"all ranks, since stage {owner.by_parameter[weight].stages[0]} has it; read it under torch.no_grad()",
                layer=owner.by_parameter[weight].name,
            )
        leaves, spec = torch_private.tree_flatten((args, given))
        whole = [_owner_of(each).seen(each) if isinstance(each, ElsewhereWeight) else each for each in leaves]
        found_args, found_kwargs = torch_private.tree_unflatten(whole, spec)
        return func(*found_args, **found_kwargs)


def _owner_of(parameter: nn.Parameter) -> StagedWeights:
    return vars(parameter)["stoker_stages"]


def _name_of(func: Any) -> str:
    name = str(getattr(func, "__name__", ""))
    if name in ("__get__", "__set__", "__delete__"):
        return str(getattr(getattr(func, "__self__", None), "__name__", ""))
    return name


def _writes(func: Any, name: str) -> bool:
    if getattr(func, "__name__", "") == "__set__" or name in ("__setitem__", "set_"):
        return True
    # `__iadd__` and `add_`.
    return (name.endswith("_") and not name.endswith("__") and name != "detach_") or name.startswith("__i")


class StagedWeights:
    """The weights of one module on one rank, what optimizers know of them, and the module's buffers.

    Args:
        own: the stage of this rank.
        weights: by name, alike on all ranks.
    """

    def __init__(self, own: int, weights: Mapping[str, StagedWeight]) -> None:
        self.own, self.weights = own, dict(weights)
        self.by_parameter = {each.parameter: each for each in weights.values()}
        self.optimizers: dict[str, Optimizer] = {}
        """Those that train them, by names that are alike on all ranks."""
        self.service: PartService | None = None
        self.kept: object = None
        """The group of DDP, kept until the program ends: see :class:`~stoker.train.splitting.parts.SplitParts`."""
        self._seen: dict[str, tuple[int, Tensor]] = {}
        self._is_loading = False

    def leave_to_others(self) -> None:
        """The weights of other stages lose their memory."""
        for weight in self.weights.values():
            if self.own in weight.stages:
                continue
            parameter = weight.parameter
            whole = parameter.data
            parameter.grad = None
            # Of the type's zero, in the weight's shape: it takes the memory of one element.
            parameter.data = whole.new_zeros(()).expand(whole.shape)
            cast("Any", parameter).stoker_stages = self
            parameter.__class__ = ElsewhereWeight

    @contextmanager
    def plain(self) -> Generator[None]:
        """Parameters of other stages are torch's own meanwhile, for a capture, which reads no values."""
        changed = [each for each in self.by_parameter if type(each) is ElsewhereWeight]
        for each in changed:
            cast("Any", each).__class__ = nn.Parameter
        try:
            yield
        finally:
            for each in changed:
                each.__class__ = ElsewhereWeight

    def keeps(self, parameter: Tensor) -> bool:
        """Whether a tensor is a weight of this rank's stage."""
        weight = self.by_parameter.get(cast("nn.Parameter", parameter))
        return weight is not None and self.own in weight.stages

    def counts(self, parameter: Tensor) -> bool:
        """Whether a weight is this rank's to count in a sum over all: one of several stages is the first one's."""
        weight = self.by_parameter.get(cast("nn.Parameter", parameter))
        return weight is not None and weight.stages[0] == self.own

    def held_by(self, optimizer: Optimizer) -> dict[int, StagedWeight]:
        """Weights that an optimizer trains, by their numbers among its parameters."""
        every = (each for group in optimizer.param_groups for each in group["params"])
        return {number: self.by_parameter[each] for number, each in enumerate(every) if each in self.by_parameter}

    # For other ranks.

    def part(self, name: str) -> memoryview:
        """The bytes of a weight of this rank, or of its state in an optimizer (``name:optimizer``)."""
        path, _, optimizer = name.partition(":")
        parameter = self.weights[path].parameter
        if not self.keeps(parameter):
            raise KeyError(name)
        if optimizer:
            return packed(self.optimizers[optimizer].state.get(parameter, {}))
        return memory_of(parameter.detach().cpu().contiguous())

    # From other ranks.

    def fetched(self, parameter: nn.Parameter) -> Tensor:
        """The values of a weight of another stage. Not collective."""
        weight = self.by_parameter[parameter]
        assert self.service is not None
        with torch.inference_mode(False), torch.no_grad():
            data = self.service.fetch(weight.stages[0], weight.name)
            found = torch.empty(0, dtype=parameter.dtype)
            if data:
                found = torch.frombuffer(data, dtype=parameter.dtype)
            return found.view(parameter.shape).to(parameter.device)

    def seen(self, parameter: nn.Parameter) -> Tensor:
        """The same, kept until weights change or training goes on."""
        name, version = self.by_parameter[parameter].name, self.version
        kept = self._seen.get(name)
        if kept is None or kept[0] != version:
            kept = self._seen[name] = version, self.fetched(parameter)
        return kept[1]

    def fetched_state(self, weight: StagedWeight, optimizer: str) -> dict[str, Tensor | Plain]:
        """The state that an optimizer of another stage has of a weight. Not collective."""
        assert self.service is not None
        found = unpacked(self.service.fetch(weight.stages[0], f"{weight.name}:{optimizer}"))
        device = weight.parameter.device
        return {
            # Steps stay where optimizers keep them.
            name: value.to(device) if isinstance(value, Tensor) and value.dim() else value
            for name, value in found.items()
        }

    # Changes.

    def written(self, parameter: ElsewhereWeight, name: str) -> Tensor:
        """A program writes a weight of another stage.

        Raises:
            ExchangeError: unless it loads a state, which all ranks do.
        """
        weight = self.by_parameter[parameter]
        if self._is_loading:
            return parameter
        raise ExchangeError(
            f"`{weight.name}` must be changed by an optimizer or load_state_dict alone, since stage {weight.stages[0]} "
            f"has it, got `{name}`",
            layer=weight.name,
        )

    @contextmanager
    def loading(self) -> Generator[None]:
        """Weights are loaded, on all ranks: each keeps its own of them."""
        self._is_loading = True
        try:
            yield
        finally:
            self._is_loading = False
            self._keep_parameters()
            self.change()

    def _keep_parameters(self) -> None:
        """A load with ``assign=True`` has put other parameters in the place of those that optimizers know."""
        for weight in self.weights.values():
            for owner, name in weight.places:
                loaded = getattr(owner, name)
                if loaded is not weight.parameter:
                    if self.own in weight.stages:
                        with torch.no_grad():
                            weight.parameter.copy_(loaded)
                    owner.register_parameter(name, weight.parameter)

    @property
    def version(self) -> int:
        """How often weights or states have changed."""
        return 0 if self.service is None else self.service.standing.version

    @property
    def is_in_step(self) -> bool:
        """Whether a pass for training has begun that no step has followed."""
        return self.service is not None and self.service.standing.is_in_step

    def begin_forward(self) -> None:
        """A pass for training begins."""
        self._seen.clear()
        if self.service is not None:
            self.service.begin_forward()

    def change(self) -> None:
        """Weights or the state of an optimizer have changed, on all ranks."""
        self._seen.clear()
        if self.service is not None:
            self.service.change_weights()


def places_of(module: nn.Module) -> dict[str, tuple[nn.Parameter, tuple[tuple[nn.Module, str], ...]]]:
    """The weights of a module by their first names, and the modules that use each."""
    names: dict[int, str] = {}
    found: dict[str, tuple[nn.Parameter, list[tuple[nn.Module, str]]]] = {}
    for path, owner in module.named_modules():
        for name, parameter in owner.named_parameters(recurse=False):
            first = names.setdefault(id(parameter), f"{path}.{name}" if path else name)
            found.setdefault(first, (parameter, []))[1].append((owner, name))
    return {name: (parameter, tuple(places)) for name, (parameter, places) in found.items()}


def stages_of(module: nn.Module, weights: Iterable[frozenset[str]]) -> dict[str, tuple[int, ...]]:
    """The stages that use each weight of a module, by its first name; none for one that is not used.

    Args:
        module: of which they are.
        weights: names of the weights of each stage, any one of a tied weight.
    """
    first = {id(parameter): name for name, (parameter, _) in places_of(module).items()}
    found: dict[str, set[int]] = {name: set() for name in first.values()}
    for stage, names in enumerate(weights):
        for name in names:
            found[first[id(module.get_parameter(name))]].add(stage)
    return {name: tuple(sorted(stages)) for name, stages in found.items()}

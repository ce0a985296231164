# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Optimizers and other things that hold a module's weights before they are sharded."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping
from typing import cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stoker.train import torch_private
from stoker.train.sharding.wholes import ShardedWeight, ShardedWeights


def optimizers_with(parameters: Iterable[nn.Parameter]) -> list[Optimizer]:
    """The optimizers of this process that train some of these weights."""
    wanted = {id(each) for each in parameters}

    def trains(each: Optimizer) -> bool:
        return any(id(held) in wanted for group in each.param_groups for held in group["params"])

    # Not `isinstance`: that asks proxies of other libraries for their class.
    return [each for each in gc.get_objects() if issubclass(type(each), Optimizer) and trains(each)]


def copies_of(module: nn.Module) -> list[nn.Module]:
    """Other modules of this process with equal weights: copies, as averages of weights are kept in."""
    own = {id(each) for each in module.modules()}
    weights = [each.detach() for each in module.parameters()]
    found: list[nn.Module] = []
    for each in gc.get_objects():
        if type(each) is not type(module) or id(each) in own:
            continue
        others = [held.detach() for held in each.parameters()]
        is_equal = len(others) == len(weights) and all(
            one.shape == other.shape and one.device == other.device and torch.equal(one, other)
            for one, other in zip(weights, others, strict=True)
        )
        if is_equal:
            found.append(each)
    return found


def lists_with(parameters: Iterable[nn.Parameter], known: Iterable[Optimizer]) -> int:
    """Lists, tuples, sets and dicts that hold some of these weights, besides modules and optimizers."""
    weights = list(parameters)
    allowed = {id(weights)}
    for optimizer in known:
        allowed.add(id(optimizer.state))
        allowed.update(id(group["params"]) for group in optimizer.param_groups)
    modules = {id(torch_private.parameters_of(each)) for each in gc.get_objects() if issubclass(type(each), nn.Module)}
    count = 0
    for each in gc.get_referrers(*weights):
        if not isinstance(each, (list, tuple, set, dict)) or id(each) in allowed or id(each) in modules:
            continue
        # Variables of a module of python hold one or two, such as those of a loop that is over.
        if isinstance(each, dict) and "__builtins__" in each:
            continue
        count += 1
    return count


def put_in_place(optimizer: Optimizer, replaced: Mapping[nn.Parameter, ShardedWeight], weights: ShardedWeights) -> None:
    """An optimizer trains sharded weights in the place of whole ones; its state is theirs."""
    for group in optimizer.param_groups:
        group["params"] = [replaced[each].parameter if each in replaced else each for each in group["params"]]
    # Emptied and filled again: files have states in the order of their keys.
    kept = list(optimizer.state.items())
    optimizer.state.clear()
    for parameter, values in kept:
        weight = replaced.get(cast("nn.Parameter", parameter))
        if weight is None:
            optimizer.state[parameter] = values
            continue
        optimizer.state[weight.parameter] = {
            name: weights.sharded(weight, value)
            if isinstance(value, Tensor) and value.shape == parameter.shape
            else value
            for name, value in values.items()
        }

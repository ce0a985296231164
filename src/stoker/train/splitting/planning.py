# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false
"""Which layers of a model are split, and how: checks of a plan, pairs in it, and a choice by bytes. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from typing import get_args

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from stoker.train import torch_private
from stoker.train.splitting.layers import LayerPair, SplitKind

KINDS: tuple[SplitKind, ...] = get_args(SplitKind)
BY_ELEMENT: tuple[type[nn.Module], ...] = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid,
    nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.LogSigmoid, nn.Tanhshrink, nn.Identity,
)  # fmt: skip
"""What may stand between the layers of a pair: each output depends on one input alone, and nothing is drawn."""
ID_BYTES = 8
"""The number of a table's row."""


def check(model: nn.Module, plan: Mapping[str, SplitKind], ranks: int) -> None:
    """Raises ValueError unless a plan fits a model and a number of ranks."""
    if isinstance(model, DistributedDataParallel):
        raise ValueError("`model` must not be in DDP yet, got a DistributedDataParallel; `split` makes it")
    modules = dict(model.named_modules(remove_duplicate=False))
    for path, kind in plan.items():
        if kind not in KINDS:
            raise ValueError(f"`plan` must name methods among {', '.join(KINDS)}, got {kind!r} for `{path}`")
        module = modules.get(path)
        wanted = nn.Embedding if kind == "table" else nn.Linear
        if type(module) is not wanted or not path:
            found = "no module of that path" if module is None else type(module).__name__
            raise ValueError(f"`{path}` must be a {wanted.__name__} inside the model for `{kind}`, got {found}")
        if reason := why_not(path, module, kind, ranks, holders_of(modules)):
            raise ValueError(reason)
    cut = {id(each) for path, kind in plan.items() for each in _cut(modules[path], kind)}
    if plan and not any(each.requires_grad and id(each) not in cut for each in model.parameters()):
        raise ValueError("`plan` must leave DDP a weight that is trained, and it splits all of them; leave out a layer")


def why_not(
    path: str, module: nn.Linear | nn.Embedding, kind: SplitKind, ranks: int, holders: dict[int, int],
    ours: Collection[int] = (),
) -> str:  # fmt: skip
    """Why a layer cannot be split so, as a sentence; empty where it can.

    Args:
        path: of the layer.
        module: the layer.
        kind: the method.
        ranks: that share it.
        holders: how many modules hold each parameter, by its identity.
        ours: numbers of hooks that stoker has there, and will remove.
    """
    if any(holders[id(parameter)] > 1 for parameter in module.parameters(recurse=False)):
        return f"`{path}` must not share its weights with another module to be split"
    width = module.weight.shape[1 if kind == "row" else 0]
    if width < ranks:
        what = {"column": "outputs", "row": "inputs", "table": "rows"}[kind]
        return f"`{path}` must have at least as many {what} as there are ranks ({ranks}), got {width}"
    if isinstance(module, nn.Embedding):
        barred = {"max_norm": module.max_norm, "scale_grad_by_freq": module.scale_grad_by_freq, "sparse": module.sparse}
        for name, value in barred.items():
            if value:
                return f"`{path}` must be without `{name}` to be split, got {value}"
    if torch_private.has_hooks(module, ours):
        return f"`{path}` must be without hooks to be split; register them on the module around it"
    return ""


def pairs_of(model: nn.Module, plan: Mapping[str, SplitKind]) -> dict[str, LayerPair]:
    """For each layer of a pair what the two share: a column and a row split with only activation functions between."""
    found: dict[str, LayerPair] = {}
    for run in _runs(model):
        for first, second in itertools.pairwise(run):
            if plan.get(first) == "column" and plan.get(second) == "row" and first not in found:
                found[first] = found[second] = LayerPair()
    return found


def followers_of(model: nn.Module) -> dict[str, str]:
    """For each layer that could be the second of a pair the one that would be the first."""
    return {second: first for run in _runs(model) for first, second in itertools.pairwise(run)}


def chosen(model: nn.Module, ranks: int, rows: int) -> dict[str, SplitKind]:
    """Splits that send fewer bytes than an all-reduce of the gradient; the plan may be empty.

    Pairs come first, since they exchange nothing in between. A layer by itself takes the cheaper of both ways.

    Args:
        model: whose layers are ``Linear`` and ``Embedding`` modules among others.
        ranks: that share it.
        rows: of each rank's batch.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    holders = holders_of(modules)

    def fits(path: str, kind: SplitKind) -> bool:
        module = modules[path]
        return isinstance(module, nn.Linear | nn.Embedding) and not why_not(path, module, kind, ranks, holders)

    found: dict[str, SplitKind] = {}
    linear = {path: module for path, module in modules.items() if path and type(module) is nn.Linear}
    tables = {path: module for path, module in modules.items() if path and type(module) is nn.Embedding}
    for run in _runs(model):
        for first, second in itertools.pairwise(run):
            if first in found or not (fits(first, "column") and fits(second, "row")):
                continue
            m, n = linear[first].in_features, linear[second].out_features
            size = linear[first].weight.numel() + linear[first].out_features + linear[second].weight.numel()
            if pair_elements(ranks, rows, m, n) < ring_elements(ranks, size):
                found[first], found[second] = "column", "row"
    for path in (each for each in linear if each not in found):
        m, n = linear[path].in_features, linear[path].out_features
        ways: list[tuple[float, SplitKind]] = []
        if fits(path, "column"):
            ways.append((column_elements(ranks, rows, m, n), "column"))
        if fits(path, "row"):
            ways.append((column_elements(ranks, rows, n, m), "row"))
        if ways and min(ways)[0] < ring_elements(ranks, n * m):
            found[path] = min(ways)[1]
    for path, table in tables.items():
        size = 4 * ring_elements(ranks, table.weight.numel())
        if fits(path, "table") and table_bytes(ranks, rows, table.embedding_dim) < size:
            found[path] = "table"
    return _with_rest(model, modules, found)


def ring_elements(ranks: int, size: int) -> float:
    """Elements that a rank sends for an all-reduce."""
    return 2 * (ranks - 1) / ranks * size


def column_elements(ranks: int, rows: int, m: int, n: int) -> float:
    """Elements that a rank sends in a step for a column split of M inputs and N outputs; a row split is its mirror."""
    return 2 * (ranks - 1) * rows * (m + n / ranks)


def pair_elements(ranks: int, rows: int, m: int, n: int) -> float:
    """Elements that a rank sends in a step for a pair with M inputs and N outputs."""
    return 2 * (ranks - 1) * rows * (m + n)


def table_bytes(ranks: int, lookups: int, width: int) -> float:
    """Bytes that a rank sends in a step for a table split, where lookups spread evenly over its rows."""
    return (ranks - 1) / ranks * lookups * (2 * width * 4 + ID_BYTES)


def _with_rest(model: nn.Module, modules: Mapping[str, nn.Module], found: dict[str, SplitKind]) -> dict[str, SplitKind]:
    """A plan that leaves DDP something: without its smallest layer where it splits all."""
    cut = {id(each) for path, kind in found.items() for each in _cut(modules[path], kind)}
    if found and all(id(each) in cut for each in model.parameters() if each.requires_grad):
        smallest = min(found, key=lambda path: modules[path].get_parameter("weight").numel())
        return {path: kind for path, kind in found.items() if path != smallest}
    return found


def _runs(model: nn.Module) -> Iterator[list[str]]:
    """Paths of linear layers that follow each other in one ``Sequential``, with only activation functions between."""
    modules: dict[str, nn.Module] = dict(model.named_modules())
    for prefix, module in modules.items():
        # A subclass may call its layers in another order.
        if not isinstance(module, nn.Sequential) or type(module).forward is not nn.Sequential.forward:
            continue
        run: list[str] = []
        for name, each in module.named_children():
            if type(each) is nn.Linear:
                run.append(f"{prefix}.{name}" if prefix else name)
            elif not isinstance(each, BY_ELEMENT):
                yield run
                run = []
        yield run


def _cut(module: nn.Module, kind: SplitKind) -> list[nn.Parameter]:
    held = dict(module.named_parameters(recurse=False))
    return [each for name, each in held.items() if name == "weight" or kind == "column"]


def holders_of(modules: Mapping[str, nn.Module]) -> dict[int, int]:
    """How many paths hold each parameter."""
    found: dict[int, int] = {}
    for module in modules.values():
        for parameter in module.parameters(recurse=False):
            found[id(parameter)] = found.get(id(parameter), 0) + 1
    return found

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
"""A model that is called on parts of a batch, each part's forward pass repeated in its backward pass.

Only one part's activations are alive at a time. Losses are computed by the program on the outputs of all samples, as
before. Weights' gradients are sums over parts: equal to rounding. It is for models whose samples do not depend on each
other, which is checked on a few samples of the program's own first batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from stoker.core.mishaps import reraise_from_handler
from stoker.core.patching import Patches
from stoker.train.fitting.recomputing import derived, spared, why_not
from stoker.train.torch_private import AveragingNorm, Dropout, FakeTensor, tree_flatten, tree_leaves, tree_unflatten

_PROBED = 4
"""Samples on which parts are compared with the whole."""
_TOLERANCE = 1e-4
"""Relative difference of outputs that rounding explains."""


def why_not_cut(model: nn.Module) -> str:
    """Why a model cannot be called on parts of its samples, as far as its modules tell; empty if it may be."""
    if reason := why_not(model):
        return reason
    for part in model.modules():
        if isinstance(part, AveragingNorm) and part.training:
            return f"{type(part).__name__} averages over the samples"
        if isinstance(part, Dropout) and part.training and part.p > 0:
            return "dropout would draw other numbers"
    return ""


def cut(model: nn.Module, number: int, patches: Patches) -> None:
    """Calls a model on so many parts of its samples from now on, until the patches are restored.

    A batch that has no such parts is computed as a whole. The first batch shows whether samples are independent; where
    they are not, the model is called as before.

    Raises:
        ValueError: its samples depend on each other.
    """
    if reason := why_not_cut(model):
        raise ValueError(f"`model` must have independent samples, and {reason}")
    patches.set_class(model, _class_of(type(model), number, _Proof()))


class _Proof:
    """Whether the samples of a model were found independent."""

    def __init__(self) -> None:
        self.holds: bool | None = None

    def of(self, model: nn.Module, run: Callable[..., Any], args: Any, kwargs: Any) -> bool:
        if self.holds is None:
            self.holds = independent(model, run, args, kwargs)
        return self.holds


def _class_of(original: type[nn.Module], number: int, proof: _Proof) -> type[nn.Module]:
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        run: Callable[..., Any] = functools.partial(original.forward, self)
        size = size_of(args, kwargs)
        if not torch.is_grad_enabled() or size < 2 * number or not proof.of(self, run, args, kwargs):
            return run(*args, **kwargs)
        outs: list[Any] = []
        for start, stop in _spans(size, number):
            given, named = part_of((args, kwargs), size, start, stop)

            def again(*values: Any, named: Any = named) -> Any:
                return run(*values, **named)

            outs.append(checkpoint(again, *given, use_reentrant=False))
        return joined(outs)

    return derived(original, forward)


def size_of(args: Any, kwargs: Any) -> int:
    """Samples of a batch: the first size of its first tensor; 0 without one."""
    return next((leaf.shape[0] for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and leaf.dim()), 0)


def _spans(size: int, number: int) -> list[tuple[int, int]]:
    return [(size * at // number, size * (at + 1) // number) for at in range(number)]


def part_of(values: Any, size: int, start: int, stop: int) -> Any:
    """Nested values with some samples of each tensor that has all."""
    leaves, form = tree_flatten(values)
    parts = [
        leaf[start:stop] if isinstance(leaf, Tensor) and leaf.dim() and leaf.shape[0] == size else leaf
        for leaf in leaves
    ]  # fmt: skip
    return tree_unflatten(parts, form)


def joined(outs: Sequence[Any]) -> Any:
    """Outputs of parts as the output of the whole."""
    flat = [tree_flatten(out) for out in outs]
    leaves = [
        torch.cat(each) if isinstance(each[0], Tensor) else each[0]
        for each in zip(*(leaves for leaves, _ in flat), strict=True)
    ]  # fmt: skip
    return tree_unflatten(leaves, flat[0][1])


def independent(model: nn.Module, run: Callable[..., Any], args: Any, kwargs: Any) -> bool:
    """Whether outputs of a few samples are those that each half of them has alone. Nothing of the program changes."""
    if any(isinstance(leaf, FakeTensor) for leaf in tree_leaves((args, kwargs, list(model.parameters())))):
        return True  # it is traced, and has no values to compare
    size = size_of(args, kwargs)
    count = min(_PROBED, size)
    with torch.no_grad(), torch.random.fork_rng(), spared(model):
        before = torch.get_rng_state()
        try:
            given, named = part_of((args, kwargs), size, 0, count)
            whole = run(*given, **named)
            halves: list[Any] = []
            for start, stop in ((0, count // 2), (count // 2, count)):
                some, others = part_of((given, named), count, start, stop)
                halves.append(run(*some, **others))
        except Exception as error:  # a tensor that only looks as if it had samples
            reraise_from_handler(error)
            return False
        if not torch.equal(before, torch.get_rng_state()):
            return False  # it draws numbers: other ones for parts
    pairs = list(zip(tree_leaves(whole), *(tree_leaves(half) for half in halves), strict=True))
    return bool(pairs) and all(_alike(count, *pair) for pair in pairs)


def _alike(count: int, whole: Any, first: Any, second: Any) -> bool:
    if not isinstance(whole, Tensor):
        return whole is first or bool(whole == first)
    if not whole.dim() or whole.shape[0] != count or first.shape[0] + second.shape[0] != count:
        return False
    return torch.allclose(
        whole, torch.cat([first, second]), rtol=_TOLERANCE, atol=_TOLERANCE * float(whole.abs().max())
    )

"""Which operators write into given memory: those with a kernel for it. Fakes compute a new tensor and copy it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from stoker.train.arena.recording import made
from stoker.train.arena.variants import native_variant, out_variants, writer_of

aten = torch.ops.aten
X = torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
IMAGES = X.view(1, 4, 32, 32)
WRITTEN: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "mm": (aten.mm.default, (X, X)),
    "addmm": (aten.addmm.default, (X[0], X, X)),
    "bmm": (aten.bmm.default, (X[None], X[None])),
    "add": (aten.add.Tensor, (X, X)),
    "by a number": (aten.mul.Tensor, (X, 0.5)),
    "softmax": (aten._softmax.default, (X, 1, False)),
    "gelu": (aten.gelu.default, (X,)),
    "gelu_backward": (aten.gelu_backward.default, (X, X)),
    "threshold_backward": (aten.threshold_backward.default, (X, X, 0)),
    "cat": (aten.cat.default, ([X[:32], X[32:]],)),
    "stack": (aten.stack.default, ([X, X],)),
    "max_pool": (aten.max_pool2d_with_indices.default, (IMAGES, [2, 2], [2, 2])),
    "batch_norm": (aten._native_batch_norm_legit_functional.default,
                   (IMAGES, X[0, :4], X[1, :4], X[2, :4], X[3, :4].abs(), True, 0.1, 1e-5)),
    "relu": (aten.relu.default, (X,)),
    "clone": (aten.clone.default, (X,)),
    "to another type": (aten._to_copy.default, (X,)),
    "embedding": (aten.embedding.default, (X, torch.arange(64).view(8, 8))),
    "masked_fill": (aten.masked_fill.Scalar, (X, X > 0, -1.0)),
    "slice_backward": (aten.slice_backward.default, (X[:, :60], [64, 64], 1, 2, 62, 1)),
    "select_backward": (aten.select_backward.default, (X[0], [64, 64], 0, 3)),
    "zeros": (aten.new_zeros.default, (X, [64, 64])),
}  # fmt: skip
FAKES = (
    aten.relu.default, aten.clone.default, aten.native_layer_norm.default, aten.native_dropout.default,
    aten.embedding.default, aten.convolution.default, aten.convolution_backward.default, aten.mkldnn_rnn_layer.default,
)  # fmt: skip


def largest_allocated(call: Callable[[], Any]) -> int:
    """Bytes of the largest single allocation of a call."""
    call()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        call()
    sizes = [event.nbytes() for event in found.profiler.kineto_results.events() if event.name() == "[memory]"]
    return max((size for size in sizes if size > 0), default=0)


@pytest.mark.parametrize("name", WRITTEN)
def test_results_are_written_without_a_tensor_of_their_size(name: str) -> None:
    operator, args = WRITTEN[name]
    found = operator(*args)
    results: tuple[Tensor, ...] = found if isinstance(found, tuple) else (found,)
    outs = [torch.full_like(each, 7) for each in results]
    write = writer_of(operator)
    assert write is not None

    def run() -> None:
        for call in write(args, {}, outs):
            made(call)

    assert largest_allocated(run) < max(each.numel() * each.element_size() for each in results)
    assert all(torch.equal(one, other) for one, other in zip(results, outs, strict=True))


def test_fakes_are_not_used() -> None:
    """The naive choice, any overload with an `out`, takes them: they allocate what they were to spare."""
    for operator in FAKES:
        assert native_variant(operator) is None
        assert out_variants(operator)
    (naive,) = out_variants(aten.relu.default)
    out = torch.empty_like(X)
    assert largest_allocated(lambda: naive(X, out=out)) >= X.numel() * X.element_size()
    assert writer_of(aten.native_layer_norm.default) is None


def test_what_draws_or_depends_on_values_is_left() -> None:
    for operator in (aten.bernoulli.default, aten.nonzero.default, aten.view.default, aten.add_.Tensor):
        assert writer_of(operator) is None
    assert writer_of(len) is None

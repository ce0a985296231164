"""What operations of torch are written as, against torch's own: any argument that they may have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from stoker.deploy.importing.composing import COMPOSED, OTHER_NAMES, composed

_aten: Any = torch.ops.aten


def rand(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(sum(sizes)))


IMAGE, ROW = rand(2, 6, 4, 8), rand(3, 8)
CALLS: list[tuple[Any, tuple[Any, ...]]] = [
    (_aten.group_norm.default, (IMAGE, 3, rand(6), rand(6), 1e-3)),
    (_aten.group_norm.default, (IMAGE, 2)),
    (_aten.instance_norm.default, (IMAGE, rand(6), rand(6), None, None, True, 0.1, 1e-3, True)),
    (_aten.instance_norm.default, (IMAGE, None, None, rand(6), rand(6).abs(), False, 0.1, 1e-3, True)),
    (_aten.rms_norm.default, (ROW, [8], rand(8), 1e-3)),
    (_aten.rms_norm.default, (ROW, [8])),
    (_aten.prelu.default, (IMAGE, rand(6))),
    (_aten.prelu.default, (ROW, rand(1))),
    (_aten.glu.default, (IMAGE, 1)),
    (_aten.stack.default, ([ROW, -ROW], -1)),
    (_aten.unbind.int, (IMAGE, 2)),
    (_aten.repeat.default, (ROW, [2, 1, 3])),
    (_aten.tile.default, (IMAGE, [2, 3])),
    (_aten.hstack.default, ([ROW, ROW[:, :3]],)),
    (_aten.hstack.default, ([ROW[0], ROW[1]],)),
    (_aten.roll.default, (IMAGE, [1, -3], [2, 3])),
    (_aten.roll.default, (ROW, [8], [1])),
    (_aten.flip.default, (IMAGE, [1, -1])),
    (_aten.new_zeros.default, (IMAGE, [2, 3])),
    (_aten.zeros_like.default, (IMAGE,)),
    (_aten.new_ones.default, (IMAGE, [2, 3])),
    (_aten.ones_like.default, (IMAGE,)),
    (_aten.pixel_shuffle.default, (rand(2, 8, 3, 5), 2)),
    (_aten.pixel_unshuffle.default, (IMAGE, 2)),
    (_aten.channel_shuffle.default, (IMAGE, 3)),
    (_aten.upsample_nearest1d.vec, (rand(2, 3, 5), None, [2.0])),
    (_aten.upsample_nearest2d.vec, (IMAGE, [12, 8], None)),
    (_aten.upsample_nearest2d.vec, (IMAGE, None, [0.5, 2.0])),
    (_aten.pad.default, (IMAGE, [1, 2, 3, 0], "constant", 0.5)),
    (_aten.pad.default, (IMAGE, [0, 1, 0, 0, 2, 1])),
    (_aten.pad.default, (IMAGE, [-1, 2, 1, -3])),
    (_aten.pad.default, (IMAGE, [2, 3, 1, 0], "reflect")),
    (_aten.pad.default, (IMAGE, [2, 3, 1, 0], "replicate")),
    (_aten.pad.default, (IMAGE, [2, 3, 1, 0], "circular")),
    (_aten.amax.default, (IMAGE, [-1, 1])),
    (_aten.amax.default, (IMAGE, [2], True)),
    (_aten.amin.default, (IMAGE, [1], True)),
    (_aten.max.dim, (IMAGE, 3)),
    (_aten.min.dim, (IMAGE, 1, True)),
    (_aten.maximum.default, (ROW, -ROW)),
    (_aten.minimum.default, (ROW, -ROW)),
    (_aten.addcmul.default, (ROW, ROW, ROW)),
    (_aten.lerp.Scalar, (ROW, -ROW, 0.3)),
    (_aten.lerp.Tensor, (ROW, -ROW, rand(8))),
    (_aten.baddbmm.default, (rand(2, 4, 4), IMAGE[:, 0], IMAGE[:, 0].transpose(1, 2))),
    (_aten.expand_as.default, (ROW[:, :1], ROW)),
    (_aten.movedim.int, (IMAGE, 1, -1)),
    (_aten.movedim.intlist, (IMAGE, [1, 2], [3, 1])),
    (_aten.moveaxis.int, (IMAGE, 2, 1)),
    (_aten.swapaxes.default, (IMAGE, 1, 3)),
    (_aten.swapdims.default, (IMAGE, 1, 2)),
    (_aten.narrow.default, (ROW, 1, 2, 3)),
    (_aten.tensor_split.sections, (ROW, 3, 1)),
    (_aten.tensor_split.indices, (ROW, [2, 3], 1)),
    (_aten.mT.default, (IMAGE,)),
    (_aten.concatenate.default, ([ROW, -ROW], 1)),
    (_aten.clip.default, (ROW, -0.5, 0.5)),
    (_aten.negative.default, (ROW,)),
    (_aten.absolute.default, (ROW,)),
    *((getattr(_aten, name).Tensor, (ROW, rand(8))) for name in OTHER_NAMES),
    *((getattr(_aten, name).Scalar, (ROW, 0.5)) for name in OTHER_NAMES),
]


@pytest.mark.parametrize("at", range(len(CALLS)), ids=lambda at: f"{CALLS[at][0]}-{at}")
def test_a_composition_is_what_torch_computes(at: int) -> None:
    operation, given = CALLS[at]
    found, real = COMPOSED[operation](*given), operation(*given)
    for one, other in zip(
        *(each if isinstance(each, (tuple, list)) else [each] for each in (found, real)), strict=True
    ):
        assert one.shape == other.shape
        assert torch.allclose(one.double(), other.double(), atol=1e-5)


def test_all_compositions_are_compared() -> None:
    assert {operation for operation, _ in CALLS} == set(COMPOSED)


@pytest.mark.parametrize(
    ("operation", "given"),
    [
        (_aten.rms_norm.default, (IMAGE, [4, 8])),
        (_aten.upsample_nearest2d.vec, (IMAGE, [5, 8], None)),
        (_aten.upsample_nearest2d.vec, (IMAGE, None, [0.55, 1.0])),  # of 4 rows 2, the first two
        (_aten.amax.default, (IMAGE, [0, 1])),
        (_aten.min.dim, (ROW, 0)),
        (_aten.unbind.int, (ROW, 0)),
        (_aten.roll.default, (ROW, [1])),
    ],
)
def test_what_has_no_composition_stays(operation: Any, given: tuple[Any, ...]) -> None:
    assert COMPOSED[operation](*given) is NotImplemented


class Normed(torch.nn.Module):
    """A norm of root mean squares that is written out, and something that only looks like one."""

    def __init__(self, norm: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x)


@pytest.mark.parametrize(
    ("norm", "joined"),
    [
        (lambda x: x * torch.rsqrt(x.to(torch.float32).pow(2).mean(-1, keepdim=True) + 1e-6), True),
        (lambda x: torch.rsqrt((x * x).mean(2, keepdim=True)) * x.float(), True),
        (lambda x: x / torch.sqrt(x.square().mean(-1, keepdim=True) + 0.5), True),
        (lambda x: x * torch.sqrt(x.square().mean(-1, keepdim=True) + 0.5), False),
        (lambda x: torch.rsqrt(x.square().mean(-1, keepdim=True) + 0.5) / x, False),
        (lambda x: (x + 1) * torch.rsqrt(x.square().mean(-1, keepdim=True) + 0.5), False),
        (lambda x: x * torch.rsqrt(x.square().mean(1, keepdim=True) + 0.5), False),
        (lambda x: x * torch.rsqrt(x.pow(3).mean(-1, keepdim=True) + 3), False),
        (lambda x: x * torch.rsqrt(torch.add(x.square().mean(-1, keepdim=True), 1.0, alpha=5)), False),
        (lambda x: x * torch.rsqrt(x.int().float().square().mean(-1, keepdim=True) + 0.5), False),
        (lambda x: x.int().float() * torch.rsqrt(x.square().mean(-1, keepdim=True) + 0.5), False),
    ],
)
def test_a_norm_that_is_written_out_is_one_operation(
    norm: Callable[[torch.Tensor], torch.Tensor], joined: bool
) -> None:
    module, x = Normed(norm).eval(), rand(2, 3, 8) + 1
    batch = torch.export.Dim("batch", min=1)
    program = composed(torch.export.export(module, (x,), dynamic_shapes=({0: batch},)))
    found = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert ("aten.layer_norm.default" in found) == joined
    assert ("aten.rsqrt.default" in found or "aten.sqrt.default" in found) != joined
    assert torch.allclose(program.module()(x), norm(x), atol=1e-5)

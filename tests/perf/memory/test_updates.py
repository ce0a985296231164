"""What the updates of a rank hold under ZeRO-1, against bytes that its optimizer's step takes."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec.structs
import pytest
import torch
from torch import Tensor, nn

from stoker.core.placement.shares import cut_of, owners_of
from stoker.perf.features.lifetimes import BufferLife, MemoryTimeline
from stoker.perf.features.step import trace
from stoker.perf.memory.remedies import sharded
from stoker.perf.memory.timeline import live_bytes
from stoker.perf.memory.updates import Updates, is_of_updates, may_cut
from stoker.train.fitting.live_bytes import LiveBytes


def module_of(widths: list[int]) -> nn.Module:
    return nn.Sequential(*[nn.Linear(before, after) for before, after in pairwise(widths)])


OPTIMIZERS = ("AdamW", "Adam", "NAdam", "RAdam", "Adadelta", "Adagrad", "RMSprop", "Adamax", "ASGD", "Rprop", "SGD")


def optimizer_of(name: str, weights: Any, *, foreach: bool = False) -> torch.optim.Optimizer:
    own: Any = getattr(torch.optim, name)
    return own(weights, lr=1e-3, foreach=foreach)


def traced(widths: list[int], name: str = "AdamW", *, foreach: bool = False) -> MemoryTimeline:
    return trace(
        module_of(widths), torch.empty(1, widths[0]), optimizer=lambda p: optimizer_of(name, p, foreach=foreach)
    )[1]


def own_of(weights: list[nn.Parameter], ranks: int, rank: int) -> list[nn.Parameter]:
    """What a rank updates: weights, and parts of those that are cut."""
    sizes = [each.numel() * each.element_size() for each in weights]
    found: list[nn.Parameter] = []
    for weight, owner in zip(weights, owners_of(sizes, ranks, [True] * len(sizes)), strict=True):
        if owner == rank:
            found.append(weight)
        elif owner is None:
            start, stop = cut_of(weight.numel(), ranks, rank)
            assert weight.grad is not None
            part = nn.Parameter(weight.detach().flatten()[start:stop])
            part.grad = weight.grad.flatten()[start:stop]
            found.append(part)
    return found


def counted(widths: list[int], ranks: int, name: str = "AdamW") -> int:
    """Most bytes of states and temporaries in a later step of any rank's optimizer."""
    most = 0
    for rank in range(ranks):
        weights = list(module_of(widths).parameters())
        for each in weights:
            each.grad = torch.zeros_like(each)
        own = own_of(weights, ranks, rank)
        optimizer = optimizer_of(name, own)
        optimizer.step()
        known: list[Tensor] = [*weights, *(each.grad for each in weights if each.grad is not None)]
        states = [value for state in optimizer.state.values() for value in state.values()]
        with LiveBytes([*known, *states]) as live:
            optimizer.step()
        most = max(most, live.peak - sum(each.untyped_storage().nbytes() for each in known))
    return most


def of_updates(timeline: MemoryTimeline) -> int:
    """Most bytes of states and temporaries of the optimizer's last step."""
    lives = tuple(
        each for each in timeline.buffers if is_of_updates(each) and (each.category == "optimizer" or each.uses)
    )
    return int(live_bytes(msgspec.structs.replace(timeline, buffers=lives)).max())


@pytest.mark.parametrize(
    "widths",
    [
        pytest.param([96, 384, 384, 384, 96], id="equal weights, of which two meet on a rank"),
        pytest.param([64, 512, 512, 128, 10], id="one is cut"),
        pytest.param([200, 200], id="one layer"),
        pytest.param([8, 640, 16, 640, 8, 640, 4], id="small ones between large ones"),
    ],
)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_rank_that_holds_most_is_predicted(widths: list[int], ranks: int) -> None:
    plain = traced(widths)
    found = of_updates(sharded(plain, ranks, weights=False))
    assert found == pytest.approx(counted(widths, ranks), rel=0.01, abs=2048)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_other_optimizers_are_predicted(name: str) -> None:
    for widths in ([96, 384, 384, 384, 96], [8, 640, 16, 640, 8, 640, 4]):
        plain = traced(widths, name)
        for ranks in (2, 4):
            found = of_updates(sharded(plain, ranks, weights=False))
            assert found == pytest.approx(counted(widths, ranks, name), rel=0.01, abs=2048)


def test_weights_that_may_not_be_cut_are_whole_on_a_rank() -> None:
    assert may_cut(("AdamW", "SGD"))
    assert not may_cut(("AdamW", "Adafactor"))
    plain = traced([64, 512, 512, 128, 10])
    cut, whole = (of_updates(sharded(plain, 4, weights=False, cut=each)) for each in (True, False))
    assert whole > 1.5 * cut


def test_halves_of_what_all_updates_hold_would_be_too_little() -> None:
    """Temporaries of whole weights meet on a rank: a half was predicted once."""
    assert counted([96, 384, 384, 384, 96], 2) > 1.2 * of_updates(traced([96, 384, 384, 384, 96])) / 2


def test_weights_that_are_updated_together_are_shared_evenly() -> None:
    plain = traced([96, 384, 96], foreach=True)
    assert Updates.of(plain) is None
    assert of_updates(sharded(plain, 2, weights=False)) == pytest.approx(of_updates(plain) / 2, rel=0.01)


def test_what_a_step_leaves_goes_with_it_and_not_with_the_step_of_another_optimizer() -> None:
    """Two copies of one program, as a generator and a discriminator are trained in turn."""
    plain = traced([96, 384, 384, 384, 96])
    calls = len(plain.calls)
    again = [
        msgspec.structs.replace(
            each,
            birth=each.birth + plain.end,
            death=each.death + plain.end,
            uses=tuple(use + calls for use in each.uses),
        )
        for each in plain.buffers
    ]
    stays = [each.death == plain.end for each in plain.buffers]
    first = [
        msgspec.structs.replace(each, death=2 * plain.end) if stay else each
        for each, stay in zip(plain.buffers, stays, strict=True)
    ]
    both = msgspec.structs.replace(
        plain, end=2 * plain.end, buffers=(*first, *again),
        calls=(*plain.calls, *(msgspec.structs.replace(each, at=each.at + plain.end) for each in plain.calls)),
    )  # fmt: skip
    once, twice = sharded(plain, 2, weights=False), sharded(both, 2, weights=False)
    for before, one, other, stay in zip(
        once.buffers, twice.buffers[: len(stays)], twice.buffers[len(stays) :], stays, strict=True
    ):
        assert one.bytes == other.bytes == before.bytes
        assert other.death - plain.end == before.death
        assert one.death == (2 * plain.end if stay else before.death)


def test_every_buffer_stays_in_its_place_and_dies_in_time() -> None:
    plain = traced([8, 640, 16, 640, 8, 640, 4])
    changed = sharded(plain, 3, weights=False)
    assert len(changed.buffers) == len(plain.buffers)

    def name_of(each: BufferLife) -> tuple[object, ...]:
        return each.birth, each.category, each.module, each.line

    for before, after in zip(plain.buffers, changed.buffers, strict=True):
        assert name_of(before) == name_of(after)
        assert after.birth <= after.death <= plain.end
        assert after.bytes in (0, before.bytes) or is_of_updates(before)

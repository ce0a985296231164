"""Saved activations in host memory: equal to plain training in all that a program can see, fewer bytes alive."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stoker.core.patching import Patches
from stoker.train.fitting.live_bytes import LiveBytes
from stoker.train.fitting.offloading import Offloading
from tests.train.bits import same

WIDTH, SAMPLES = 48, 512


class Block(nn.Module):
    """A residual block whose activations are views of each other in part; it counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm, self.drop = nn.BatchNorm1d(WIDTH), nn.Dropout(0.1)
        self.calls = 0

    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        self.calls += 1
        query, key, value = self.into(self.norm(x)).chunk(3, dim=1)
        mixed = torch.softmax(query * key, dim=1) * value
        return x + self.drop(torch.relu_(self.out(mixed))) * scale


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[Block() for _ in range(6)], nn.Linear(WIDTH, 10))


def away(model: nn.Sequential, patches: Patches, places: range = range(6)) -> None:
    def refuse(place: int, reason: str) -> None:
        raise AssertionError(reason)

    Offloading([model[place] for place in places], patches, refuse)


def trained(change: Callable[[nn.Sequential, Patches], None] | None, micro: int = 1) -> tuple[list[Any], int]:
    """All that three steps leave behind, and the most bytes alive in the last one."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    seen: list[Any] = []
    with Patches("test") as patches, LiveBytes() as live:
        if change is not None:
            change(model, patches)
        for _ in range(3):
            optimizer.zero_grad()
            live.begin()
            for _ in range(micro):
                loss = model(torch.randn(SAMPLES, WIDTH)).square().mean()
                loss.backward()
            optimizer.step()
            seen.append(loss.item())
            model.eval()
            with torch.no_grad():
                seen.append(float(model(torch.ones(4, WIDTH)).sum()))
            model.train()
        peak = live.peak
    return [*seen, *model.state_dict().values(), *(block.calls for block in model[:6])], peak  # type: ignore[misc]


@pytest.mark.parametrize("micro", [1, 2])
@pytest.mark.parametrize("places", [range(6), range(0, 6, 2), range(2, 3)])
def test_nothing_changes_but_the_bytes(micro: int, places: range) -> None:
    plain, before = trained(None, micro)
    changed, after = trained(lambda model, patches: away(model, patches, places), micro)
    assert all(map(same, plain, changed))
    assert len(plain) == len(changed)
    # Of a block: its input's norm, three products and what follows; the input itself stays for the block before it.
    least = {6: 0.45, 3: 0.2, 1: 0.0}[len(places)]
    assert after < (1 - least) * before


def test_memory_of_the_device_is_given_up_between_the_passes_and_back_for_one_block_more() -> None:
    model = net()
    x = torch.randn(SAMPLES, WIDTH)
    with Patches("test") as patches, LiveBytes([x, *model.parameters()]) as live:
        away(model, patches)
        loss = model(x).sum()
        kept, least = live.now, live.begin()
        assert kept < least
        loss.backward()
        # While a block's backward pass runs, what the one before it saved comes back.
        assert live.peak - kept < 2.6 * (least - kept)
    plain = net()
    with LiveBytes([x, *plain.parameters()]) as live:
        loss = plain(x).sum()
        assert kept < 0.35 * live.now


def test_a_graph_that_is_kept_gives_its_gradients_twice() -> None:
    model, plain = net(), net()
    x = torch.randn(SAMPLES, WIDTH)
    with Patches("test") as patches:
        away(model, patches)
        for each in (model, plain):
            torch.manual_seed(1)
            loss = each(x).sum()
            loss.backward(retain_graph=True)
            loss.backward()
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert same(ours.grad, theirs.grad)


def test_a_graph_that_is_dropped_and_a_pass_that_fails_leave_nothing() -> None:
    model = net()
    with Patches("test") as patches, LiveBytes(model.parameters()) as live:
        away(model, patches)
        base = live.now
        loss = model(torch.randn(SAMPLES, WIDTH)).sum()
        del loss
        with pytest.raises(RuntimeError, match="should contain 10 elements"):
            model[:6](model[6](torch.randn(8, WIDTH)))
        model(torch.randn(SAMPLES, WIDTH)).sum().backward()
        model.zero_grad()
        buffers = sum(each.nbytes for each in model.buffers())
        assert live.now - base <= buffers


def test_copies_and_files_are_of_the_plain_class() -> None:
    model = net()
    with Patches("test") as patches:
        away(model, patches)
        assert type(model[0]) is not Block
        assert type(copy.deepcopy(model)[0]) is Block
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        assert type(torch.load(file, weights_only=False)[0]) is Block
    assert type(model[0]) is Block


def test_one_whose_class_must_stay_is_left_with_the_reason() -> None:
    model = net()
    model[1].forward = model[1].forward  # type: ignore[method-assign]
    reasons: dict[int, str] = {}
    with Patches("test") as patches:
        Offloading([*model[:3]], patches, reasons.__setitem__)
        assert type(model[1]) is Block
        model(torch.randn(SAMPLES, WIDTH)).sum().backward()
    assert list(reasons) == [1]
    assert "replaced on the object" in reasons[1]

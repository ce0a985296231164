"""Repeated forward passes that are given objects: these are written to once, and not held."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from stoker.core.patching import Patches
from stoker.records.fitting import Keeps
from stoker.train.fitting.live_bytes import LiveBytes
from stoker.train.fitting.recomputing import recompute
from stoker.train.fitting.remembering import holds_objects

WIDTH, SAMPLES = 16, 32


class Layer:
    """Keys of one block, which grow."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None


class Cache:
    """Keys of all blocks."""

    def __init__(self, count: int) -> None:
        self.layers = [Layer() for _ in range(count)]

    def update(self, place: int, keys: Tensor) -> Tensor:
        """Appends keys to those of a block."""
        layer = self.layers[place]
        layer.keys = keys.clone() if layer.keys is None else torch.cat([layer.keys, keys])
        return layer.keys


class Block(nn.Module):
    """Attends to the keys that its cache has."""

    def __init__(self, place: int) -> None:
        super().__init__()
        self.place = place
        self.norm, self.inner = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        self.middle, self.outer = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor, cache: Cache | None = None, skips: list[Tensor] | None = None) -> Tensor:
        keys = self.inner(self.norm(x))
        if cache is not None:
            keys = cache.update(self.place, keys)
        if skips is not None:
            skips.append(x)
            x = x + torch.stack(skips).mean(0)
        scores = torch.softmax(x @ keys.T, 1)
        return x + self.outer(torch.nn.functional.gelu(self.middle(scores @ keys)))


class Model(nn.Module):
    """Makes a cache for each forward pass, and returns it or not."""

    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block(place) for place in range(blocks))
        self.cache: Callable[[], Cache | None] = lambda: None

    def forward(self, x: Tensor) -> tuple[Tensor, Cache]:
        cache = Cache(len(self.blocks))
        self.cache = weakref.ref(cache)
        for place, block in enumerate(self.blocks):
            x = block(x, cache) if place % 2 else block(x, cache=cache)
        return x, cache


class Naive(Block):
    """What torch's checkpoint alone does."""

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:  # type: ignore[override]
        return checkpoint(super().forward, *args, use_reentrant=False, **kwargs)


def step(model: Model, *, keeps: Keeps | None, holds: bool = False) -> tuple[Tensor, list[Tensor | None], Cache | None]:
    """Gradients of a step, and its cache."""
    model.zero_grad()
    with Patches("test") as patches:
        for block in model.blocks if keeps else ():
            recompute(block, keeps or "nothing", patches)
        out, cache = model(torch.linspace(-1, 1, SAMPLES * WIDTH).reshape(SAMPLES, WIDTH))
        kept = cache if holds else None
        del cache
        alive = model.cache() is not None
        assert alive is holds, "nothing but the program holds the cache"
        out.square().mean().backward()
    return out.detach(), [each.grad for each in model.parameters()], kept


@pytest.mark.parametrize("holds", [False, True])
@pytest.mark.parametrize("keeps", ["nothing", "products"])
def test_a_cache_is_written_to_once(keeps: Keeps, holds: bool) -> None:
    plain, fitted = step(Model(), keeps=None, holds=holds), step(Model(), keeps=keeps, holds=holds)
    assert torch.equal(plain[0], fitted[0])
    for ours, theirs in zip(fitted[1], plain[1], strict=True):
        assert ours is not None
        assert theirs is not None
        assert torch.equal(ours, theirs)
    if holds:
        assert plain[2] is not None
        assert fitted[2] is not None
        for one, other in zip(fitted[2].layers, plain[2].layers, strict=True):
            assert one.keys is not None
            assert other.keys is not None
            assert torch.equal(one.keys, other.keys)


def test_the_naive_way_writes_to_it_twice_and_holds_it() -> None:
    model = Model()
    for block in model.blocks:
        block.__class__ = Naive
    out, cache = model(torch.randn(SAMPLES, WIDTH))
    del cache
    assert model.cache() is not None
    with pytest.raises(RuntimeError, match="metadata"):
        out.sum().backward()


def test_a_cache_costs_no_memory_until_the_backward_pass() -> None:
    def peak(makes: bool) -> int:
        model = Model(12)
        x = torch.randn(SAMPLES, WIDTH)
        with Patches("test") as patches:
            for block in model.blocks:
                recompute(block, "nothing", patches)
            with LiveBytes() as live:
                if makes:
                    out = model(x)[0]
                else:
                    out = x
                    for block in model.blocks:
                        out = block(out)
                live.begin()
                out.sum().backward()
                return live.peak

    # The keys of one block are copied, not those of twelve.
    assert peak(makes=True) <= peak(makes=False) + 3 * SAMPLES * WIDTH * 4


def test_a_list_is_as_it_was_before_the_pass() -> None:
    def gradients(repeats: bool) -> list[Tensor | None]:
        model = Model()
        with Patches("test") as patches:
            for block in model.blocks if repeats else ():
                recompute(block, "nothing", patches)
            skips: list[Tensor] = []
            out = torch.linspace(-1, 1, SAMPLES * WIDTH).reshape(SAMPLES, WIDTH)
            for block in model.blocks:
                out = block(out, skips=skips)
            out.sum().backward()
            assert len(skips) == 3
        return [each.grad for each in model.parameters()]

    for ours, theirs in zip(gradients(True), gradients(False), strict=True):
        assert ours is not None
        assert theirs is not None
        assert torch.equal(ours, theirs)


class State:
    """What a block reads and does not change."""

    def __init__(self, x: Tensor) -> None:
        self.x = x


class Reading(nn.Module):
    def forward(self, x: Tensor, state: State) -> Tensor:
        return (x * state.x).tanh().exp()


class Borrowing(nn.Module):
    """Writes its own keys, and reads those of another block."""

    def forward(self, x: Tensor, cache: Cache) -> Tensor:
        other = cache.layers[0].keys
        assert other is not None
        return (cache.update(1, x.tanh()) * (other + 0.0).sin()).exp()


class Mark:
    """Means what it is."""


MARK = Mark()


def test_an_object_without_attributes_stays_itself() -> None:
    class Marked(nn.Module):
        def forward(self, x: Tensor, mark: Mark, seen: list[int]) -> Tensor:
            return x.tanh().exp() if mark is MARK else x.exp()

    module = Marked()
    x = torch.ones(3, requires_grad=True)
    with Patches("test") as patches:
        recompute(module, "nothing", patches)
        module(x, MARK, []).sum().backward()
    assert x.grad is not None


def test_what_is_only_read_is_held() -> None:
    module = Reading()
    x = torch.ones(3, requires_grad=True)
    with Patches("test") as patches:
        recompute(module, "nothing", patches)
        module(x, State(x * 2)).sum().backward()
    y = torch.ones(3, requires_grad=True)
    Reading()(y, State(y * 2)).sum().backward()
    assert x.grad is not None
    assert y.grad is not None
    assert torch.equal(x.grad, y.grad)


def test_what_another_left_and_nobody_holds_is_refused_not_taken_for_something_else() -> None:
    module = Borrowing()
    x = torch.ones(3, requires_grad=True)

    def out() -> Tensor:
        cache = Cache(2)
        cache.update(0, x + 1)
        return module(x, cache)

    with Patches("test") as patches:
        recompute(module, "nothing", patches)
        with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
            out().sum().backward()


@pytest.mark.parametrize(
    ("values", "does"),
    [
        ((torch.ones(1), None, 2, "a", (torch.ones(1), True)), False), (([],), True), (({},), True),
        ((Cache(1),), True), (((1, Cache(1)),), True), ((nn.Linear(1, 1),), False), ((torch.float32,), False),
    ],
)  # fmt: skip
def test_only_what_can_be_written_to_is_remembered(values: tuple[Any, ...], does: bool) -> None:
    assert holds_objects(values, {}) is does
    assert holds_objects((), dict(enumerate(values))) is does  # type: ignore[arg-type]

"""What a forward pass changes, seen from outside: each of these would be wrong if it were repeated."""

from __future__ import annotations

import collections
import logging
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from stoker.run.fitting.looking.changes import change, reached_by

CALLS = 0
SEEN: list[int] = []
DRAWS = np.random.default_rng(0)


class Meter:
    """A count that a program keeps."""

    def __init__(self) -> None:
        self.count = 0


class Settings:
    """What a model was made by."""

    def __init__(self) -> None:
        self.width, self.names = 4, {"0": "no", "1": "yes"}


class Cache:
    """Keys of earlier calls, as those that a decoder is given."""

    def __init__(self) -> None:
        self.layers, self.keys, self.recent = [Meter()], torch.zeros(4), collections.deque([1, 2])


class Layer(nn.Module):
    """A layer whose forward pass does something besides."""

    made = 0

    def __init__(self, act: Any, own: torch.Generator | None = None) -> None:
        super().__init__()
        self.inner, self.act = nn.Linear(4, 4), act
        self.calls, self.counts, self.meter = 0, {"calls": 300}, Meter()
        self.sums, self.own = np.zeros(3), own
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        """The output."""
        self.act(self, x, cache)
        return self.inner(x)


class Plain(nn.Module):
    """A layer that changes nothing, whatever it reads and holds."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop, self.settings = nn.BatchNorm1d(4), nn.Dropout(0.5), Settings()
        self.log, self.ends = logging.getLogger("plain"), collections.deque([1.0, float("nan")])

    def forward(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        """The output."""
        self.log.debug("%d of %d", CALLS, self.settings.width)
        return self.drop(self.norm(x)) + torch.rand(4)


def seen(module: nn.Module, *args: Any, **kwargs: Any) -> str:
    """What one forward pass is said to change."""
    before = reached_by(module, args, kwargs)
    module(*args, **kwargs)
    return change(before, reached_by(module, args, kwargs))


def put(name: str, value: Any) -> Any:
    return lambda layer, x, cache: setattr(layer, name, value)


def count(layer: Any, x: Any, cache: Any) -> None:
    layer.calls += 1


def count_inside(layer: Any, x: Any, cache: Any) -> None:
    layer.counts["calls"] += 1


def count_in_object(layer: Any, x: Any, cache: Any) -> None:
    layer.meter.count += 1


def count_in_class(layer: Any, x: Any, cache: Any) -> None:
    Layer.made += 1


def add_to_array(layer: Any, x: Any, cache: Any) -> None:
    layer.sums[1] += 1


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (count, "writes `calls`"),
        (count_inside, "writes `counts`"),
        (count_in_object, "writes `meter`"),
        (count_in_class, "writes `made`"),
        (add_to_array, "writes `sums`"),
        (put("last", torch.zeros(1)), "writes `last`"),
        (lambda layer, x, cache: delattr(layer, "calls"), "deletes an attribute"),
        (lambda layer, x, cache: layer.mean.add_(1), "writes buffers"),
        (lambda layer, x, cache: x.add_(1), "changes its input"),
        (lambda layer, x, cache: cache.keys.add_(1), "changes its input"),
        (lambda layer, x, cache: cache.recent.append(3), "changes its input"),
        (lambda layer, x, cache: random.random(), "random numbers of python"),
        (lambda layer, x, cache: np.random.rand(), "random numbers of NumPy"),
    ],
)
def test_a_change_is_named(act: Any, words: str) -> None:
    assert words in seen(Layer(act), torch.ones(2, 4), cache=Cache())


def test_a_generator_of_its_own_is_named_before_its_input() -> None:
    layer = Layer(lambda layer, x, cache: x.add_(1), torch.Generator())
    assert "a private random generator (`own`)" in seen(layer, torch.ones(2, 4))


class Keeping(nn.Module):
    """A layer that keeps what it computes in what it is given."""

    def forward(self, x: Tensor, cache: Cache) -> Tensor:
        """The output."""
        cache.layers.append(Meter())
        cache.layers[0].count += 1
        cache.keys = torch.cat([cache.keys, x[0]])
        return x * 2


def test_objects_that_a_repetition_is_given_as_they_were_may_change() -> None:
    assert [seen(Keeping(), torch.ones(2, 4), cache) for cache in [Cache()] * 2] == ["", ""]
    assert seen(Keeping(), torch.ones(2, 4), cache=Cache()) == ""


def test_globals_that_its_text_names_are_looked_at() -> None:
    class Global(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            SEEN.append(len(x))
            return x

    class Counting(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            global CALLS
            CALLS += 1
            return x

    class Drawing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * DRAWS.random()

    assert seen(Global(), torch.ones(2)) == "its forward pass changes the global `SEEN`"
    assert seen(Counting(), torch.ones(2)) == "its forward pass changes the global `CALLS`"
    assert "(`DRAWS`)" in seen(Drawing(), torch.ones(2))


@pytest.mark.parametrize("module", [Plain(), Plain().eval(), nn.TransformerEncoderLayer(4, 2, 8), nn.Identity()])
def test_what_changes_nothing_is_not_named(module: nn.Module) -> None:
    assert [seen(module, torch.ones(3, 4)) for _ in range(2)] == ["", ""]


def test_a_look_keeps_no_tensor() -> None:
    module, x = nn.Linear(4, 4), torch.ones(2, 4)
    reached = reached_by(module, (x,), {})
    pending: list[Any] = [reached.inputs, reached.attributes, reached.named, reached.buffers]
    while pending:
        value = pending.pop()
        assert not isinstance(value, Tensor)
        pending += list(value.values()) if isinstance(value, dict) else list(value) if isinstance(value, tuple) else []

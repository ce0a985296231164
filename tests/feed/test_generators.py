"""Random generators that a dataset holds itself: each sample's seed reaches them, so the loader can be elastic."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from stoker.feed import streams
from tests.faults.serve import loader_of, served


class Transform:
    """Draws from what it holds."""

    def __init__(self, generator: Any, draw: Callable[[Any], float]) -> None:
        self.generator = generator
        self.draw = draw

    def __call__(self, value: float) -> float:
        return value + self.draw(self.generator)


class OfAClass:
    """Holds one generator for all of its instances, as MONAI's transforms until they are seeded."""

    R = np.random.RandomState()

    def __call__(self, value: float) -> float:
        return value + self.R.random()


class Rows:
    def __init__(self, transform: Callable[[float], float]) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([self.transform(float(index))], dtype=torch.float64)


MAKERS: dict[str, Callable[[], Callable[[float], float]]] = {
    "numpy": lambda: Transform(np.random.default_rng(), lambda g: g.random()),
    "numpy, another kind": lambda: Transform(np.random.Generator(np.random.Philox()), lambda g: g.random()),
    "numpy, legacy": lambda: Transform(np.random.RandomState(), lambda g: g.random()),
    "random": lambda: Transform(random.Random(), lambda g: g.random()),
    "torch": lambda: Transform(torch.Generator(), lambda g: float(torch.rand((), generator=g))),
    "of a class": OfAClass,
}


def batches(make: Callable[[], Callable[[float], float]], **settings: Any) -> tuple[list[torch.Tensor], str, str]:
    """Two epochs under a fresh transform; the tier and its reason."""
    torch.manual_seed(5)
    with served(**settings) as record:
        loader = loader_of(Rows(make()))
        found = [batch for _ in range(2) for batch in loader]
        assert not record.notices()
    return found, record.tiers()[-1], record.opened()[-1].reason


@pytest.mark.integration
@pytest.mark.parametrize("name", MAKERS)
def test_a_seed_for_each_sample_makes_a_loader_elastic_whoever_makes_it(name: str) -> None:
    one, tier, _ = batches(MAKERS[name], random="sample", workers=1)
    assert tier == "elastic"
    for workers in (0, 3):
        other, _, _ = batches(MAKERS[name], random="sample", workers=workers)
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    drawn = torch.cat(one)[:, 0] % 1
    assert len(drawn.unique()) == len(drawn), "each sample of each epoch has numbers of its own"


@pytest.mark.integration
@pytest.mark.parametrize("name", MAKERS)
def test_without_it_the_reason_names_the_generator(name: str) -> None:
    _, tier, reason = batches(MAKERS[name])
    assert tier == "pinned"
    held = "dataset.transform.R" if name == "of a class" else "dataset.transform.generator"
    assert f"`{held}` draws random numbers (`--random sample` seeds it for each sample)" in reason


def test_what_cannot_be_seeded_is_left_alone() -> None:
    try:
        streams.adopt([random.SystemRandom(), random.Random(1)])
        states = streams.save()
        streams.restore(states)
        assert len(streams.adopt(())) == 1
    finally:
        streams.adopt(())


@pytest.mark.parametrize("name", [name for name in MAKERS if name != "of a class"])
def test_a_draw_from_each_kind_is_seen(name: str) -> None:
    transform: Any = MAKERS[name]()
    streams.adopt([transform.generator])
    try:
        picture = streams.mark()
        assert not streams.drawn_since(picture)
        transform(0.0)
        assert streams.drawn_since(picture)
    finally:
        streams.adopt(())


def test_adopted_generators_are_seeded_saved_and_seen_to_draw_as_the_main_streams_are() -> None:
    generators = [np.random.default_rng(1), np.random.RandomState(1), random.Random(1), torch.Generator()]

    def draw() -> list[float]:
        numpy_new, legacy, python, torchs = generators
        return [numpy_new.random(), legacy.random(), python.random(), float(torch.rand((), generator=torchs))]  # type: ignore[union-attr, call-overload]

    states = streams.save()
    assert streams.adopt(generators) == ()
    try:
        before = streams.save()
        streams.seed(7)
        picture = streams.mark()
        first = draw()
        assert streams.drawn_since(picture)
        streams.seed(7)
        assert not streams.drawn_since(picture)
        assert draw() == first
        assert len(set(first)) == len(first)
        streams.restore(before)
        again = draw()
        streams.restore(before)
        assert draw() == again != first
    finally:
        streams.adopt(())
        streams.restore(states)

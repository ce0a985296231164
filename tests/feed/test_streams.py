"""The three random streams: seeded by one number, put back exactly, and every kind of draw noticed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stoker.core import seeds
from stoker.feed import streams


@pytest.fixture(autouse=True)
def unchanged() -> Iterator[None]:
    states = streams.save()
    yield
    streams.restore(states)


DRAWS: dict[str, Callable[[], object]] = {
    "torch.rand": lambda: torch.rand(1),
    "torch.randint": lambda: torch.randint(5, (1,)),
    "torch.randperm": lambda: torch.randperm(3),
    "torch.bernoulli": lambda: torch.bernoulli(torch.tensor(0.5)),
    "torch.multinomial": lambda: torch.multinomial(torch.ones(3), 1),
    "dropout": lambda: torch.nn.functional.dropout(torch.ones(3)),
    "normal_": lambda: torch.empty(1).normal_(),
    "torch.manual_seed": lambda: torch.default_generator.manual_seed(12),
    "random.random": random.random,
    "random.getrandbits": lambda: random.getrandbits(1),
    "random.gauss": lambda: random.gauss(0, 1),
    "random.shuffle": lambda: random.shuffle([1, 2, 3]),
    "random.choice": lambda: random.choice([1, 2, 3]),
    "random.seed": lambda: random.seed(12),
    "np.random.rand": lambda: np.random.rand(),
    "np.random.randint": lambda: np.random.randint(5),
    "np.random.permutation": lambda: np.random.permutation(3),
    "np.random.seed": lambda: np.random.seed(12),
    "np.random.normal": lambda: np.random.normal(),
}


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.parametrize("seed", range(3))
def test_a_draw_is_noticed(name: str, seed: int) -> None:
    streams.seed(seed)
    picture = streams.mark()
    assert not streams.drawn_since(picture)
    DRAWS[name]()
    assert streams.drawn_since(picture)


def test_many_draws_in_a_row_are_each_noticed() -> None:
    """The generators hand out numbers from a block of 624: the first and last of a block count as any other."""
    for draw in (random.random, np.random.rand, lambda: torch.rand(1)):
        for _ in range(1300):
            picture = streams.mark()
            draw()
            assert streams.drawn_since(picture)


def test_the_second_number_of_a_pair_is_noticed() -> None:
    """Gaussian numbers are made in pairs; handing out the second one leaves the generator itself as it was."""
    streams.seed(5)
    random.gauss(0, 1)
    np.random.normal()
    picture = streams.mark()
    random.gauss(0, 1)
    assert streams.drawn_since(picture)


def test_private_generators_are_not_the_streams() -> None:
    picture = streams.mark()
    random.Random(1).random()
    np.random.default_rng(1).random()
    np.random.RandomState(1).rand()
    torch.rand(1, generator=torch.Generator())
    assert not streams.drawn_since(picture)


@given(st.integers(0, 2**63 - 1))
def test_seeding_depends_on_the_number_alone(value: int) -> None:
    def numbers() -> tuple[float, float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(1)), random.gauss(0, 1)

    streams.seed(value)
    first = numbers()
    random.gauss(0, 1)
    np.random.normal()
    streams.seed(value)
    assert numbers() == first


def test_saved_streams_go_on_as_if_nothing_had_been_drawn() -> None:
    random.gauss(0, 1)
    np.random.normal()
    states = streams.save()
    expected = [draw() for draw in (random.random, np.random.rand, torch.rand(2).tolist, np.random.normal)]
    expected.append(random.gauss(0, 1))
    streams.restore(states)
    again = [draw() for draw in (random.random, np.random.rand)]
    again += [torch.rand(2).tolist(), np.random.normal(), random.gauss(0, 1)]
    assert len(again) == len(expected)
    assert again[:2] == expected[:2]
    streams.restore(states)
    picture = streams.mark()
    streams.restore(states)
    assert not streams.drawn_since(picture)


class TestSeeds:
    BASE = st.integers(-(2**63), 2**63 - 1)

    @given(BASE, st.integers(0, 2**40), st.integers(0, 2**50), st.integers(-(2**62), 2**62))
    def test_in_range_and_repeatable(self, base: int, iteration: int, position: int, index: int) -> None:
        seed = seeds.sample_seed(base, iteration, position, index)
        assert 0 <= seed < 2**63
        assert seed == seeds.sample_seed(base, iteration, position, index)
        assert 0 <= seeds.batch_seed(base, iteration, position) < 2**63

    @given(BASE, st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000))
    def test_each_part_matters(self, base: int, iteration: int, position: int, index: int) -> None:
        own = seeds.sample_seed(base, iteration, position, index)
        others = {
            seeds.sample_seed(base ^ 1, iteration, position, index),
            seeds.sample_seed(base, iteration + 1, position, index),
            seeds.sample_seed(base, iteration, position + 1, index),
            seeds.sample_seed(base, iteration, position, index + 1),
            seeds.batch_seed(base, iteration, position),
        }
        assert own not in others
        assert len(others) == 5

    def test_the_same_sample_twice_in_an_epoch_is_not_the_same_twice(self) -> None:
        assert len({seeds.sample_seed(1, 0, position, 7) for position in range(10_000)}) == 10_000

    def test_indices_without_canonical_bytes(self) -> None:
        assert seeds.sample_seed(1, 2, 3, "key") == seeds.sample_seed(1, 2, 3, ("other",))
        assert seeds.sample_seed(1, 2, 3, "key") != seeds.sample_seed(1, 2, 4, "key")

    def test_never_changes_from_release_to_release(self) -> None:
        """Checkpoints hold base seeds: the numbers that follow from them are part of the format."""
        assert seeds.sample_seed(0, 0, 0, 0) == GOLDEN_SAMPLE
        assert seeds.batch_seed(-5, 3, 2) == GOLDEN_BATCH


GOLDEN_SAMPLE, GOLDEN_BATCH = 4194959972174826227, 3544472340673026080

"""Islands by the rates between many ranks: a pure clustering, with planted islands, noise, and none at all."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.support.nodes import NoNamespaces, islands
from benchmarks.support.ranks import on_ranks
from stoker.train.exchanging.own_rings import OwnRing
from stoker.train.ring.search import islands_by_rates, shift_rings, shifts_of, stream_bytes

INSIDE, ACROSS = 50e6, 5e6


def rates(places: list[int], noise: float = 0.0, seed: int = 0) -> dict[tuple[int, int], float]:
    """What shifts would show of ranks in these islands."""
    count, drawn = len(places), random.Random(seed)
    return {
        (rank, (rank + shift) % count): (INSIDE if places[rank] == places[(rank + shift) % count] else ACROSS)
        * math.exp(drawn.gauss(0.0, noise))
        for shift in shifts_of(count)
        for rank in range(count)
    }


def planted(places: list[int]) -> tuple[tuple[int, ...], ...]:
    groups: dict[int, list[int]] = {}
    for rank, place in enumerate(places):
        groups.setdefault(place, []).append(rank)
    return tuple(map(tuple, groups.values()))


def alone(count: int) -> tuple[tuple[int, ...], ...]:
    return tuple((rank,) for rank in range(count))


@given(st.lists(st.integers(0, 3), min_size=4, max_size=8), st.integers(0, 1000))
def test_planted_islands_of_up_to_eight_ranks_are_found_wherever_ranks_are_placed(places: list[int], seed: int) -> None:
    found = islands_by_rates(len(places), rates(places, 0.1, seed))
    expected = planted(places)
    assert found == (expected if 1 < len(expected) < len(places) else alone(len(places)))


@pytest.mark.parametrize(("machines", "local"), [(2, 4), (4, 2), (2, 8), (4, 4), (8, 4), (8, 8)])
def test_ranks_in_turns_are_found_by_few_shifts(machines: int, local: int) -> None:
    places = [rank % machines for rank in range(machines * local)]
    assert islands_by_rates(len(places), rates(places, 0.2, 5)) == planted(places)
    assert len(shifts_of(len(places))) <= 6


@given(st.integers(4, 8), st.integers(0, 10_000), st.floats(0.0, 0.4))
def test_links_that_are_alike_make_no_islands(count: int, seed: int, noise: float) -> None:
    found = islands_by_rates(count, rates([0] * count, noise / 4, seed))
    assert found == alone(count)


def test_a_busy_machine_disturbs_few_searches() -> None:
    in_turns = [rank % 2 for rank in range(8)]
    found = [islands_by_rates(8, rates(in_turns, 0.5, seed)) for seed in range(40)]
    assert sum(each == planted(in_turns) for each in found) >= 36
    by_chance = [islands_by_rates(8, rates([0] * 8, 0.5, seed)) for seed in range(40)]
    assert sum(each == alone(8) for each in by_chance) >= 36


@given(st.integers(4, 8), st.integers(0, 1000))
def test_the_same_facts_in_another_order_give_the_same_islands(count: int, seed: int) -> None:
    facts = rates([rank % 2 for rank in range(count)], 1.0, seed)
    shuffled = list(facts.items())
    random.Random(seed).shuffle(shuffled)
    assert islands_by_rates(count, dict(shuffled)) == islands_by_rates(count, facts)


def test_islands_of_different_sizes_are_told_as_they_are() -> None:
    assert islands_by_rates(8, rates([0, 1, 1, 0, 1, 1, 0, 1])) == ((0, 3, 6), (1, 2, 4, 5, 7))


@given(st.integers(1, 70))
def test_each_rank_is_once_in_each_of_its_rings(count: int) -> None:
    for shift, place in ((shift, place) for shift in shifts_of(count) for place in range(count)):
        ring = shift_rings(count, place)[f"shift {shift}"]
        assert ring[0] == place
        assert len(set(ring)) == len(ring) > 1
        assert all((then - one) % count == shift for one, then in zip(ring, [*ring[1:], place], strict=True))


@given(st.floats(1e3, 1e10), st.integers(1, 6))
def test_a_search_keeps_to_its_bytes_and_on_usable_links_to_its_time(rate: float, shifts: int) -> None:
    size = stream_bytes(rate, shifts)
    assert shifts * size <= 350 << 10
    assert size == 8 << 10 or shifts * size / rate <= 0.13


@pytest.mark.integration
@pytest.mark.slow("eight ranks in network namespaces, three times")
def test_ranks_placed_in_turns_are_found_over_real_links() -> None:
    """Machines do not tell: each rank has a namespace of its own. Other work may disturb a try, and not all of them."""
    try:
        with islands((4, 4), 400.0, 100.0) as (first, second):
            nodes = [node for both in zip(first, second, strict=True) for node in both]

            def work(rank: int) -> tuple[Any, int]:
                before = nodes[rank].sent_payload
                group = dist.group.WORLD
                assert group is not None
                own = OwnRing(group)
                assert own.probe(torch.device("cpu")) == ""
                own.close()
                return own.links, nodes[rank].sent_payload - before

            found = [
                on_ranks(
                    8, work, timeout_s=60, enter=[node.enter for node in nodes],
                    environ=[{"GLOO_SOCKET_IFNAME": node.inner} for node in nodes],
                )
                for _ in range(3)
            ]  # fmt: skip
    except NoNamespaces as error:
        pytest.skip(f"no network namespaces here: {error}")
    for ranks in found:
        assert len({str(links.islands) for links, _ in ranks}) == 1
        assert all(sent <= 1e6 for _, sent in ranks), "bytes of a rank"
    apart = [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert [ranks[0][0].islands for ranks in found].count(apart) >= 1
    assert all(
        links.order == [0, 2, 4, 6, 1, 3, 5, 7] for ranks in found for links, _ in ranks if links.islands == apart
    )

"""The probe of links: its sizes, fits and islands purely; live, on ranks of one process and on real ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed as distributed
from hypothesis import given
from hypothesis import strategies as st

from stoker.perf.communication.links import probed
from stoker.train.ring.groups import exchange_of
from stoker.train.ring.probe import AFTER_SEARCH, LinkProbe, block_for, islands_of, order_of, probe, rate_of, sizes_for
from stoker.train.ring.search import shifts_of, stream_bytes
from tests.train.ring.ranks import ring
from tests.train.ring.test_groups import ranks as forked

RATES = st.floats(1e5, 1e11)
LATENCIES = st.floats(1e-6, 0.1)


@given(RATES, LATENCIES, st.integers(2, 512))
def test_a_probe_sends_a_megabyte_at_most_and_takes_a_third_of_a_second(rate: float, latency: float, count: int):
    sizes = sizes_for(rate, latency, count)
    assert sizes.sent(count) <= 1e6
    assert sizes.small >= 1
    searched = (8 << 10) + len(shifts_of(count)) * stream_bytes(rate, max(1, len(shifts_of(count)))) + 8 * count * 7
    assert searched + sizes_for(rate, latency, count, AFTER_SEARCH).sent(count) <= 1e6
    if rate >= 1e6 and latency * count <= 5e-3:
        facts = 6 * (count - 1) * latency
        assert sizes.sent(count) / rate + facts + (3 + sizes.small) * 2 * (count - 1) * latency <= 0.35


@given(st.floats(1e5, 1e9), st.floats(0, 0.5), st.floats(0, 1))
def test_a_rate_is_not_raised_by_a_burst_or_a_late_receiver(rate: float, burst: float, late: float):
    """A share of the bytes costs no time; or the receiver sleeps for a share of it. Their sum is not found."""
    size = 120_000
    whole = size / rate
    assert rate_of(size, whole * (1 - burst), whole / 2) <= 1.001 * rate
    assert rate_of(size, whole, max(0.0, min(whole / 2, whole * (1 - late)))) <= 1.001 * rate


def test_islands():
    alike = [1e9] * 6
    assert islands_of(list("aabbcc"), alike) == ((0, 1), (2, 3), (4, 5))
    assert islands_of(list("ababab"), alike) == ((0, 2, 4), (1, 3, 5))
    assert islands_of(list("abcdef"), alike) == tuple((place,) for place in range(6))
    fast, slow = 5e7, 1.2e7
    assert islands_of(list("abcdef"), [fast, fast, slow, fast, fast, slow]) == ((0, 1, 2), (3, 4, 5))
    assert islands_of(list("aabb"), [9e9, slow, 3e9, slow]) == ((0, 1), (2, 3))
    assert len(islands_of(list("abcd"), [9e8, 3e8, 9e8, 3e8])) == 4  # what processors make of equal links
    assert islands_of(list("abab"), ()) == ((0, 2), (1, 3))
    assert order_of(list("abab")) == [0, 2, 1, 3]
    assert islands_of(list("ab"), [fast, slow]) == ((0,), (1,))  # two directions of one link


@given(st.lists(st.tuples(st.sampled_from("abc"), RATES), min_size=2, max_size=12))
def test_islands_hold_each_place_once_and_machines_whole(places: list[tuple[str, float]]):
    hosts = [host for host, _ in places]
    found = islands_of(hosts, [rate for _, rate in places])
    assert sorted(place for island in found for place in island) == list(range(len(places)))
    for host in set(hosts):
        assert sum(any(hosts[place] == host for place in island) for island in found) == 1


@given(RATES, st.floats(1e-6, 1e-2))
def test_blocks_grow_with_rate_and_cost(rate: float, step_s: float):
    size = block_for(rate, step_s)
    assert 64 << 10 <= size <= 1 << 20
    assert size & (size - 1) == 0
    assert block_for(2 * rate, step_s) >= size
    assert block_for(rate, 2 * step_s) >= size


@given(st.floats(1e6, 1e10), st.floats(1e-6, 1e-2), st.integers(2, 16))
def test_a_link_is_fitted_to_its_points(rate: float, latency: float, count: int):
    sizes = sizes_for(rate, latency, count)
    steps = 2 * (count - 1)
    lengths = [sizes.summed] * 3 + [256] * sizes.small
    link = probed([(size, steps * latency + steps / count * size / rate) for size in lengths], count)
    assert link.basis == "probe"
    assert link.bandwidth == pytest.approx(rate, rel=1e-3)
    assert link.step_s == pytest.approx(latency, rel=1e-3)


def test_one_rank_has_no_links():
    with ring(1) as ranks, pytest.raises(ValueError, match="`exchange` must have at least 2 ranks to probe, got 1"):
        probe(ranks.exchanges[0])


@pytest.mark.parametrize("order", [[0, 1], [2, 0, 1]])
def test_all_ranks_find_the_same(order: list[int]):
    with ring(len(order), order=order) as ranks:
        found = ranks.all(lambda rank: probe(ranks.exchanges[rank]))
    assert len({(each.points, each.latencies_s, each.rates, each.islands, each.block_bytes) for each in found}) == 1
    assert found[0].islands == (tuple(range(len(order))),)
    assert min(found[0].rates) > 0
    assert min(found[0].latencies_s) > 0
    assert len({size for size, _ in found[0].points}) == 2


def _probe(rank: int) -> LinkProbe:
    exchange = exchange_of()
    found = probe(exchange)
    distributed.destroy_process_group()
    return found


@pytest.mark.integration
def test_real_ranks_find_the_same(tmp_path: Path):
    found = forked(3, tmp_path, _probe)
    assert len({(each.points, each.latencies_s, each.rates, each.islands, each.block_bytes) for each in found}) == 1
    assert min(seconds for _, seconds in found[0].points) > 0

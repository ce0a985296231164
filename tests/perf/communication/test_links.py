"""Links from what a user says and from probes, and what gloo makes of them: against measured times."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.perf.communication.collectives import (
    Group,
    all_gather,
    all_reduce,
    between_servers,
    hierarchical,
    within_servers,
)
from stoker.perf.communication.links import Interconnect, probed, stated
from stoker.perf.communication.methods import by_islands, ring

SHAPED = stated(25e6, 50e-6)
"""200 Mbit/s, as the measured ranks had it."""


def by_gloo(size: int, local: int = 1, network: Interconnect = SHAPED, fabric: Interconnect = SHAPED) -> Group:
    return Group(fabric=fabric, size=size, local=local, network=network, backend="gloo")


@pytest.mark.parametrize(("ranks", "measured"), [(2, 0.168), (4, 0.263), (8, 0.297)])
def test_gloo_over_a_shaped_link_takes_what_was_measured(ranks: int, measured: float) -> None:
    """4 MB at 200 Mbit/s in network namespaces: each measurement lies in the interval."""
    cost = all_reduce(by_gloo(ranks), 4e6)
    assert cost.low <= measured <= cost.high
    assert cost.seconds == pytest.approx(measured, rel=0.06)


def test_gloo_carries_one_ring_over_shared_uplinks_and_islands_less() -> None:
    """2 x 4 ranks, 2 MB, 400 Mbit/s inside and 100 between: 287 ms measured, 211 by islands in blocks."""
    group = by_gloo(8, 4, network=stated(12.5e6, 50e-6), fabric=stated(50e6, 50e-6))
    flat, islands, blocks = all_reduce(group, 2e6), hierarchical(group, 2e6), by_islands(group, 2e6)
    assert flat.seconds == pytest.approx(0.287, rel=0.05)
    assert islands.low <= 0.211 <= islands.high
    assert blocks.seconds == pytest.approx(0.195, rel=0.05)
    assert blocks.seconds < islands.seconds < flat.seconds


@given(st.integers(1, 4), st.integers(1, 4), st.floats(0, 1e9), st.floats(1e5, 1e11), st.floats(1e5, 1e11))
def test_sums_by_islands_are_no_faster_than_their_slower_stages(
    count: int, local: int, size: float, inside: float, between: float
) -> None:
    group = by_gloo(count * local, local, network=stated(between, 1e-5), fabric=stated(inside, 1e-5))
    cost = by_islands(group, size)
    assert cost.low <= cost.seconds <= cost.high
    if count > 1 and local > 1 and size:
        assert cost.seconds > max(within_servers(group, size).seconds, between_servers(group, size).seconds)
        faster = by_gloo(count * local, local, network=stated(2 * between, 1e-5), fabric=stated(2 * inside, 1e-5))
        assert by_islands(faster, size).seconds <= cost.seconds


def test_the_backends_sums_cost_what_they_were_measured_at() -> None:
    """Ranks in turns: each step of gloo's ring crosses the uplink, which 4 ranks share."""
    group = replace(by_gloo(8, 4, network=stated(12.5e6, 50e-6), fabric=stated(50e6, 50e-6)), flat=stated(3e6, 50e-6))
    assert all_reduce(group, 2e6) == all_reduce(by_gloo(8, network=stated(3e6, 50e-6)), 2e6)
    assert all_reduce(group, 2e6).seconds == pytest.approx(1.23, rel=0.05)
    unmeasured = replace(group, flat=None)
    assert by_islands(group, 2e6) == by_islands(unmeasured, 2e6)
    assert ring(group, 2e6) == ring(unmeasured, 2e6)


def test_gathered_factors_by_hand() -> None:
    """Each of 4 ranks sends its 1 MB three times on."""
    assert all_gather(by_gloo(4), 4e6).seconds == pytest.approx(3 * 50e-6 + 3e6 / (25e6 * 0.95))


@given(st.floats(1e6, 1e11), st.floats(0, 1e-2), st.integers(2, 64))
def test_a_probe_finds_the_link_that_made_its_times(rate: float, latency: float, ranks: int) -> None:
    steps = 2 * (ranks - 1)
    sizes = (1e4, 1e5, 1e6, 1e7)
    points = [(size, steps * latency + steps / ranks * size / rate) for size in sizes]
    points[1] = (points[1][0], 3 * points[1][1] + 1e-6)  # one disturbed measurement
    found = probed(points, ranks)
    assert found.basis == "probe"
    group = Group(fabric=found, size=ranks, local=1, network=found, backend="gloo")
    assert all_reduce(group, 1e7).seconds == pytest.approx(points[3][1], rel=0.2)


@pytest.mark.parametrize("points", [[], [(1e6, 0.1)], [(1e6, 0.1), (1e6, 0.2)], [(1e6, 0.2), (2e6, 0.1)]])
def test_a_probe_that_shows_no_rate_is_refused(points: list[tuple[float, float]]) -> None:
    with pytest.raises(ValueError, match="must show larger all-reduces taking longer"):
        probed(points, 2)


@pytest.mark.parametrize("figures", [{"bandwidth": 0.0}, {"step_s": -1.0}, {"spread": 0.5}])
def test_an_impossible_link_is_refused(figures: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="`"):
        Interconnect(**{"name": "x", "bandwidth": 1.0, "step_s": 0.0, "spread": 1.0, "source": "", **figures})  # type: ignore[arg-type]

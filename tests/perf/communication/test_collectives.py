from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.perf.catalogue import catalogue, gpu
from stoker.perf.communication.collectives import (
    Group,
    all_gather,
    all_reduce,
    all_to_all,
    reduce_scatter,
    send,
)
from stoker.perf.communication.cost import NOTHING, ExchangeCost, after
from stoker.perf.communication.links import NETWORK_SHARE, NETWORK_STEP_S, fabric_of, network_of
from stoker.perf.communication.sweeps import sweep

SIZES = st.floats(1, 1e11)


@st.composite
def groups(draw: st.DrawFn) -> Group:
    fabric = fabric_of(gpu(draw(st.sampled_from(sorted(catalogue())))))
    local = draw(st.sampled_from([1, 2, 4, 8]))
    nodes = draw(st.integers(1, 16))
    return Group(fabric=fabric, size=local * nodes, local=local, network=network_of(draw(st.floats(1e8, 4e11))))


def group(name: str, size: int, local: int = 8, network: float = 12.5e9, kind: str = "") -> Group:
    return Group(
        fabric=fabric_of(gpu(name), kind, gpus=size), size=size, local=min(size, local), network=network_of(network)
    )


@given(groups(), SIZES)
def test_costs_have_an_interval_and_one_gpu_costs_nothing(some: Group, size: float) -> None:
    for cost in (all_reduce(some, size), all_gather(some, size), reduce_scatter(some, size), all_to_all(some, size)):
        assert 0 <= cost.low <= cost.seconds <= cost.high
        assert (cost.seconds > 0) == (some.size > 1)
    alone = Group(fabric=some.fabric, size=1, local=1, network=some.network)
    assert all_reduce(alone, size) is NOTHING
    assert all_to_all(alone, size) is NOTHING


@given(groups(), SIZES, st.floats(1, 100))
def test_more_bandwidth_is_never_slower(some: Group, size: float, factor: float) -> None:
    faster = replace(some, network=replace(some.network, bandwidth=some.network.bandwidth * factor))
    for exchange in (all_reduce, all_to_all):
        assert exchange(faster, size).seconds <= exchange(some, size).seconds


def test_measured_counts_are_the_sweep_and_others_are_specification() -> None:
    size = 64 << 20
    measured = all_reduce(group("A100-80GB-SXM", 8), size)
    assert measured.seconds == sweep("A100", 8)(size)
    assert measured.basis == "measured"
    other = all_reduce(group("H100-SXM", 8), size)
    assert other.basis == "specification"
    assert other.high / other.low > measured.high / measured.low


def test_a_ring_by_hand() -> None:
    """8 H100 at 80 % of 450 GB/s: 8.4 us, 14 steps of 3.4 us, 14/8 of a GB at 360 GB/s."""
    cost = all_reduce(group("H100-SXM", 8), 1e9)
    assert cost.seconds == pytest.approx(8.4e-6 + 14 * 3.4e-6 + 1.75 * 1e9 / 360e9)
    assert reduce_scatter(group("H100-SXM", 8), 1e9).seconds == cost.seconds / 2


def test_servers_are_joined_by_rings_between_equal_places() -> None:
    """Two servers of 8: within each an all-reduce of 1 GB, between them 2 x 1/2 of it at 70 % of 12.5 GB/s."""
    cost = all_reduce(group("A100-80GB-SXM", 16), 1e9)
    between = 2 * NETWORK_STEP_S + 1e9 / (12.5e9 * NETWORK_SHARE)
    assert cost.seconds == pytest.approx(sweep("A100", 8)(1e9) + between)
    assert cost.basis == "specification"


def test_a_bridge_joins_two_and_cards_without_links_go_through_the_host() -> None:
    assert fabric_of(gpu("H100-PCIe"), gpus=2).name == "nvlink"
    assert fabric_of(gpu("H100-PCIe"), gpus=4).name == "pcie"
    assert fabric_of(gpu("RTX-4090")).name == "host"
    with pytest.raises(ValueError, match="must be one of nvlink, pcie, host, got 'ethernet'"):
        fabric_of(gpu("A10"), "ethernet")
    with pytest.raises(ValueError, match="`fabric` of A10 must be pcie or host, since it has no NVLink"):
        fabric_of(gpu("A10"), "nvlink")


def test_a_neighbour_is_sent_to_over_the_fabric_or_the_network() -> None:
    some = group("A100-80GB-SXM", 16)
    assert send(some, 0.0, over_network=True) is NOTHING
    assert send(some, 1e9, over_network=True).seconds > 10 * send(some, 1e9, over_network=False).seconds


def test_costs_add_up_and_are_as_sure_as_the_least_sure() -> None:
    both = after(
        (ExchangeCost(1.0, 1.0, 1.0, "measured", "a"), ExchangeCost(2.0, 1.0, 4.0, "specification", "b"), NOTHING)
    )
    assert both == ExchangeCost(3.0, 2.0, 5.0, "specification", "a; b")
    assert after(()) is NOTHING
    with pytest.raises(ValueError, match="must ascend from 0"):
        ExchangeCost(1.0, 2.0, 3.0)

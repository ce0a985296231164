import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.scale.budget import CpuLedger, fair_shares, local_world_size, rank_bytes, rank_cores, ranks_of_group

demands = st.lists(st.one_of(st.floats(0.0, 100.0), st.just(math.inf)), max_size=8)


def test_ranks_of_a_host_share_it_equally():
    assert rank_cores(2.0, 2) == 1.0
    assert rank_cores(2.0, 8) == 0.25
    assert rank_bytes(8 << 30, 2) == 4 << 30


def test_world_size_comes_from_the_launcher():
    assert local_world_size({}) == 1
    assert local_world_size({"LOCAL_WORLD_SIZE": "4"}) == 4
    assert local_world_size({"LOCAL_WORLD_SIZE": "many"}) == 1


@pytest.mark.parametrize(
    ("world_size", "devices", "meets_here", "ranks"),
    [(2, 0, True, 2), (4, 1, True, 4), (16, 8, True, 8), (16, 8, False, 8), (2, 8, True, 2), (16, 0, False, 1)],
)
def test_ranks_here_without_a_launcher(world_size: int, devices: int, meets_here: bool, ranks: int):
    assert ranks_of_group(world_size, devices=devices, meets_here=meets_here) == ranks


@pytest.mark.parametrize(("cores", "ranks"), [(0.0, 1), (-1.0, 1), (2.0, 0)])
def test_wrong_sizes_are_refused_by_name(cores: float, ranks: int):
    with pytest.raises(ValueError, match=r"`(host_cores|local_world_size)` must be"):
        rank_cores(cores, ranks)


def test_what_small_demands_leave_goes_to_the_large_ones():
    assert fair_shares(6.0, [1.0, math.inf, math.inf]) == [1.0, 2.5, 2.5]
    assert fair_shares(6.0, [0.0, 9.0]) == [0.0, 6.0]
    assert fair_shares(6.0, [1.0, 2.0]) == [1.0, 2.0]


@given(st.floats(0.0, 64.0), demands)
def test_shares_are_bounded_used_up_and_fair(total: float, demands: list[float]):
    shares = fair_shares(total, demands)
    assert all(0.0 <= share <= demand for share, demand in zip(shares, demands, strict=True))
    assert sum(shares) == pytest.approx(min(total, sum(demands)))
    unmet = [share for share, demand in zip(shares, demands, strict=True) if share < demand * (1 - 1e-9)]
    assert all(share == pytest.approx(max(shares)) for share in unmet)


@given(st.floats(0.0, 64.0), st.floats(0.0, 64.0), demands)
def test_more_cores_never_mean_a_smaller_share(total: float, extra: float, demands: list[float]):
    before, after = fair_shares(total, demands), fair_shares(total + extra, demands)
    assert all(b <= a * (1 + 1e-9) + 1e-9 for b, a in zip(before, after, strict=True))


def test_an_idle_loader_costs_the_other_nothing():
    ledger = CpuLedger(4.0)
    train, validate = ledger.join(), ledger.join()
    assert train.cores(math.inf, 0.0) == 4.0
    assert validate.cores(0.0, 0.1) == 2.0
    assert train.cores(math.inf, 0.2) == 4.0
    assert validate.cores(1.0, 0.3) == 2.0
    assert train.cores(math.inf, 0.4) == 3.0
    assert train.cores(math.inf, 6.0) == 4.0


def test_a_loader_that_was_heard_often_is_forgotten_soon():
    ledger = CpuLedger(2.0)
    train, validate = ledger.join(), ledger.join()
    train.cores(4.0, 0.0)
    for quarter in range(12):
        validate.cores(4.0, 10.0 + 0.25 * quarter)
    assert train.cores(4.0, 13.0) == 1.0
    assert train.cores(4.0, 13.75) == 2.0


def test_a_closed_loader_gives_its_share_back():
    ledger = CpuLedger(4.0)
    one, two = ledger.join(), ledger.join()
    two.cores(math.inf, 0.0)
    assert one.cores(math.inf, 0.0) == 2.0
    two.close()
    assert one.cores(math.inf, 0.0) == 4.0

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.perf.communication.sweeps import all_reduce, all_reduces, sweep

SWEEPS = sorted({(row.gpu, row.gpus) for row in all_reduces()})


@pytest.mark.parametrize("row", all_reduces()[::7], ids=lambda row: f"{row.gpu}x{row.gpus}-{row.size_bytes >> 20}MB")
def test_measured_sizes_take_the_measured_time(row) -> None:
    assert all_reduce(row.gpu, row.gpus, row.size_bytes) == pytest.approx(row.seconds)


@pytest.mark.parametrize("row", all_reduces()[::17])
def test_bus_bandwidth_is_that_of_its_time(row) -> None:
    moved = 2 * (row.gpus - 1) / row.gpus * row.size_bytes
    assert moved / row.seconds == pytest.approx(row.bus_bandwidth, rel=0.02)


@given(st.sampled_from(SWEEPS), st.floats(1, 1e11), st.floats(1, 3))
def test_more_bytes_are_hardly_ever_faster(place: tuple[str, int], size: float, factor: float) -> None:
    time = sweep(*place)
    assert time(size * factor) >= 0.95 * time(size)  # the measured sweep itself has dents of some percent


def test_beyond_the_sweep_bandwidth_stays_and_below_it_latency() -> None:
    time = sweep("A100", 8)
    assert time(8 * 2**30) == pytest.approx(8 * time(2**30))
    assert time(1) == pytest.approx(time.seconds[0])
    assert time(0) == 0
    assert all_reduce("A100", 1, 1e9) == 0


def test_a_sweep_that_was_not_measured_is_not_made_up() -> None:
    with pytest.raises(ValueError, match=r"among the measured ones \(A100 x2, .*V100 x8\), got H100 x8"):
        sweep("H100", 8)

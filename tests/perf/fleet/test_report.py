"""What is found of a fleet: by hand on a few jobs, by its own sums on many, beside what was published."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from stoker.core.errors import ConfigError
from stoker.perf.equations import Architecture, breakdown
from stoker.perf.fleet import Fleet, examine, synthetic_fleet
from stoker.perf.fleet.hardware_file import read_hardware
from stoker.perf.fleet.jobs import fleet_of
from stoker.perf.hardware import PAPER_TESTBED, Resource
from stoker.records.fleet import OUTCOMES, FleetReport, Port

PS, ONE = Architecture.PS_WORKER, Architecture.ONE_GPU


def fleet(*jobs: tuple[Architecture, int, float, float, float, float], **sizes: list[float]) -> Fleet:
    """Jobs of architecture, GPUs, and seconds of computation, memory, input (alone on its root) and communication."""
    rates = [PAPER_TESTBED.rate(each) for each in (Resource.COMPUTE, Resource.MEMORY, Resource.PCIE)]
    both = 1 / (1 / PAPER_TESTBED.rate(Resource.ETHERNET) + 1 / PAPER_TESTBED.rate(Resource.PCIE))
    codes, gpus, *seconds = zip(*jobs, strict=True)
    columns = [np.array(each) * rate for each, rate in zip(seconds, [*rates, both], strict=True)]
    names = ("flops", "memory_bytes", "input_bytes", "traffic_bytes")
    numbers = {"num_gpus": np.array(gpus, dtype=float), **dict(zip(names, columns, strict=True))}
    numbers |= {name: np.array(values) for name, values in sizes.items()}
    return fleet_of("by hand", np.array(codes, dtype=np.int8), numbers, None)


def test_shares_at_both_levels() -> None:
    report = examine(fleet((ONE, 1, 0.5, 0.5, 0.0, 0.0), (PS, 9, 0.2, 0.0, 0.0, 0.8)))
    whole = report.shares[-1]
    assert whole.at_job["compute"] == pytest.approx((0.5 + 0.2) / 2)
    assert whole.at_gpu["compute"] == pytest.approx((0.5 + 9 * 0.2) / 10)
    ethernet = 0.8 * (1 / 3.125) / (1 / 3.125 + 1 / 10)
    assert whole.at_gpu["ethernet"] == pytest.approx(0.9 * ethernet)
    assert [each.group for each in report.shares] == ["1w1g", "PS/Worker", "all jobs"]


def test_curves_count_jobs_up_to_a_share() -> None:
    report = examine(fleet((ONE, 1, 0.2, 0.8, 0.0, 0.0), (ONE, 1, 0.6, 0.4, 0.0, 0.0)))
    curve = next(each for each in report.curves if (each.group, each.part) == ("1w1g", "compute"))
    assert [curve.jobs_frac[percent] for percent in (0, 19, 20, 59, 60, 100)] == [0, 0, 0.5, 0.5, 1, 1]


def test_the_bottleneck_is_the_busiest_resource() -> None:
    report = examine(fleet((ONE, 1, 0.4, 0.3, 0.3, 0.0), (PS, 3, 0.4, 0.0, 0.0, 0.6)))
    whole = report.bottlenecks[-1]
    assert whole.at_job["compute"] == whole.at_job["ethernet"] == 0.5
    assert whole.at_gpu["ethernet"] == 0.75


def ports(report: FleetReport) -> dict[str, Port]:
    return {port.target: port for port in report.ports if port.source == "PS/Worker"}


def test_ports_say_who_gains_and_why_others_do_not() -> None:
    report = examine(
        fleet(
            (PS, 8, 0.1, 0.0, 0.0, 0.9),  # gains
            (PS, 64, 0.5, 0.0, 0.0, 0.5),  # faster per GPU, but 8 GPUs instead of 64
            (PS, 8, 0.4, 0.0, 0.3, 0.3),  # its input contends
            (PS, 8, 0.1, 0.0, 0.0, 0.9),  # gains, but is too large
            dense_weight_bytes=[1e9, 1e9, 1e9, 1e9],
            embedding_weight_bytes=[0.0, 0.0, 0.0, 100e9],
        )
    )
    local = ports(report)["AllReduce-Local"]
    assert local.outcomes == {"gains": 1, "too large": 1, "input contends": 1, "fewer GPUs": 1}
    assert local.per_gpu.faster_frac == 0.75
    assert local.whole.faster_frac == 0.5
    gain = 1 / (0.1 + 0.9 / 21)
    assert local.best[0].whole == pytest.approx(gain)
    assert {each.job for each in local.best[:2]} == {"row 1", "row 4"}
    # Embeddings that are parted over 8 GPUs fit.
    assert ports(report)["PEARL"].outcomes == {"gains": 3, "input contends": 1}
    assert set(local.outcomes) <= set(OUTCOMES)
    assert sum(frac for _, frac in local.bins) == pytest.approx(1)


def test_a_job_that_does_not_communicate_is_no_faster_elsewhere() -> None:
    report = examine(fleet((PS, 8, 1.0, 0.0, 0.0, 0.0)))
    assert ports(report)["AllReduce-Local"].outcomes == {"slower": 1}
    assert ports(report)["AllReduce-Local"].whole.median == pytest.approx(1)


def test_unknown_sizes_count_as_fitting_and_that_is_said() -> None:
    report = examine(fleet((PS, 8, 0.1, 0.0, 0.0, 0.9)))
    assert ports(report)["AllReduce-Local"].outcomes == {"gains": 1}
    assert report.missing[0].what == "whose weights fit a GPU after a port"


def test_upgrades_by_hand() -> None:
    report = examine(fleet((PS, 8, 0.0, 0.0, 0.0, 1.0), (ONE, 8 // 8, 1.0, 0.0, 0.0, 0.0)))
    ethernet = next(each for each in report.upgrades if each.after == "100 Gbps")
    assert ethernet.speedup["PS/Worker"] == pytest.approx(0.42 / 0.18)
    assert ethernet.speedup["1w1g"] == 1
    assert ethernet.gpu_time_saved_frac == pytest.approx(8 / 9 * (1 - 0.18 / 0.42))
    assert ethernet.faster_frac == 0.5
    assert ethernet.mark == ""
    slower = next(each for each in report.upgrades if each.after == "10 Gbps")
    assert slower.gpu_time_saved_frac < 0
    assert slower.mark == " (unverified)"
    assert not any(each.before == each.after for each in report.upgrades)


def test_sensitivities_begin_with_the_most_telling() -> None:
    report = examine(fleet((PS, 8, 0.1, 0.0, 0.0, 0.9), (ONE, 1, 0.9, 0.1, 0.0, 0.0)))
    first = {each.group: each.speedup[0][0] for each in report.sensitivities}
    assert first["PS/Worker"] == "Ethernet"
    assert first["1w1g"] == "GPU FLOP/s"


@pytest.mark.parametrize("overlap", ["none", "full"])
def test_sums_of_a_fleet_hold(overlap: str) -> None:
    made = synthetic_fleet(2000, seed=1)
    report = examine(made, overlap=overlap)
    for each in report.shares:
        assert sum(each.at_job.values()) == pytest.approx(1)
        assert sum(each.at_gpu.values()) == pytest.approx(1)
    for each in report.bottlenecks:
        assert sum(each.at_job.values()) == pytest.approx(1)
    for port in report.ports:
        assert sum(port.outcomes.values()) == port.jobs
    assert sum(group.jobs for group in report.groups) == report.jobs == 2000
    assert all(curve.jobs_frac[-1] == 1 for curve in report.curves)
    assert all(curve.jobs_frac == sorted(curve.jobs_frac) for curve in report.curves)
    assert made.features is not None
    step = breakdown(made.features, PAPER_TESTBED, overlap)
    assert np.allclose(sum(step.parts().values()), step.total_s, rtol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_the_made_up_fleet_is_as_published(seed: int) -> None:
    found = examine(synthetic_fleet(10_000, seed)).comparisons
    assert len(found) >= 18
    assert max(each.off_points for each in found) <= 3, [each for each in found if each.off_points > 3]


def test_a_made_up_fleet_is_the_same_for_the_same_seed_and_named_so_everywhere() -> None:
    one, same, other = (examine(synthetic_fleet(300, seed)) for seed in (0, 0, 1))
    assert one == same
    assert one.shares != other.shares
    assert one.synthetic
    assert one.name.startswith("synthetic")
    assert all(name.startswith("synthetic-") for name in synthetic_fleet(3).names or [])
    with pytest.raises(ValueError, match="`jobs` must be at least 1, got 0"):
        synthetic_fleet(0)


def test_small_made_up_fleets_work() -> None:
    for jobs in range(1, 12):
        assert examine(synthetic_fleet(jobs)).jobs == jobs


def test_hardware_of_the_users_own_changes_what_it_names(tmp_path: Path) -> None:
    path = tmp_path / "ours.toml"
    path.write_text("ethernet_bytes_per_s = 12.5e9\nefficiency = { nvlink = 0.9 }\n")
    hardware = read_hardware(path)
    assert hardware.peak(Resource.ETHERNET) == 12.5e9
    assert hardware.efficiency[Resource.NVLINK] == 0.9
    assert hardware.efficiency[Resource.PCIE] == 0.7
    report = examine(fleet((PS, 8, 0.1, 0.0, 0.0, 0.9)), hardware)
    constants = {each.name: each for each in report.constants}
    assert (constants["Ethernet"].value, constants["Ethernet"].basis) == ("100 Gbps", "given")
    assert constants["Ethernet"].mark == ""
    assert constants["GPU memory bandwidth"].mark == " (unverified)"
    assert not any(each.after == "100 Gbps" for each in report.upgrades)
    path.write_text("efficiency = 0.5")
    assert set(read_hardware(path).efficiency.values()) == {0.5}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ethernet = 1", "`ethernet` must be one of gpu_flops_per_s, "),
        ("ethernet_bytes_per_s = 0", "`ethernet_bytes_per_s` must be a positive number, got 0"),
        ("ethernet_bytes_per_s = 'fast'", "`ethernet_bytes_per_s` must be a number, got 'fast'"),
        ("gpus_per_server = true", "`gpus_per_server` must be a number, got True"),
        ("[efficiency]\npcie = 2", "`efficiency.pcie` must be above 0 and at most 1, got 2"),
        ("[efficiency]\ndisk = 1", "`disk` must be one of compute, memory, pcie, nvlink, ethernet"),
        ("efficiency = 'good'", "`efficiency` must be a number, got 'good'"),
        ("ethernet", "must be TOML"),
    ],
)
def test_hardware_that_breaks_a_rule_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "ours.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_hardware(path)
    assert said in str(caught.value)


def test_a_missing_hardware_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be a file that can be read"):
        read_hardware(tmp_path / "none.toml")


def test_other_hardware_moves_the_bottleneck() -> None:
    jobs = fleet((PS, 8, 0.3, 0.0, 0.0, 0.7))
    fast = replace(PAPER_TESTBED, ethernet_bytes_per_s=1e12, pcie_bytes_per_s=1e12)
    assert examine(jobs).bottlenecks[-1].at_job["ethernet"] == 1
    assert examine(jobs, fast).bottlenecks[-1].at_job["compute"] == 1


def test_jobs_that_no_server_holds_are_noted() -> None:
    report = examine(fleet((Architecture.ALLREDUCE_LOCAL, 16, 1.0, 0.0, 0.0, 0.0)))
    assert report.notes == [
        "1 jobs of 1wng and AllReduce-Local have more GPUs than one server; "
        "a server has 8 (`gpus_per_server` of --hardware)"
    ]

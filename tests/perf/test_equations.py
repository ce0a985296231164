"""The framework of the PAI study against numbers worked by hand, and what must be true of any job."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.perf.equations import (
    LABELS,
    PATHS,
    RESOURCE_OF_PART,
    Architecture,
    Breakdown,
    Features,
    breakdown,
    port,
    ring_traffic,
    throughput,
)
from stoker.perf.hardware import GBPS, PAPER_TESTBED, Hardware, Provenance, Resource

MB = 1e6
ALONE = replace(PAPER_TESTBED, gpus_per_pcie_root=1)
"""The testbed, each GPU with a root of its own: the published shares of ResNet50 know no contention."""


def sending(architecture: Architecture, num_gpus: int = 16) -> Features[float]:
    """A job that does nothing but send 1 GB."""
    return Features(
        architecture=architecture,
        num_gpus=float(num_gpus),
        flops=0.0,
        memory_bytes=0.0,
        input_bytes=0.0,
        traffic_bytes=1e9,
    )


def test_a_job_that_only_sends_gains_21_times_in_one_server_and_a_quarter_in_many() -> None:
    before_s = breakdown(sending(Architecture.PS_WORKER), PAPER_TESTBED).total_s
    local_s = breakdown(sending(Architecture.ALLREDUCE_LOCAL), PAPER_TESTBED).total_s
    cluster_s = breakdown(sending(Architecture.ALLREDUCE_CLUSTER), PAPER_TESTBED).total_s
    assert before_s / local_s == pytest.approx(21.0)
    assert before_s / cluster_s == pytest.approx(1.235, abs=5e-4)


def test_four_times_the_ethernet_is_2_33_times_as_fast_for_a_job_that_only_sends() -> None:
    faster = replace(PAPER_TESTBED, ethernet_bytes_per_s=100 * GBPS)
    job = sending(Architecture.PS_WORKER)
    gain = breakdown(job, PAPER_TESTBED).total_s / breakdown(job, faster).total_s
    assert gain == pytest.approx(2.33, abs=5e-3)


def test_the_links_of_ps_worker_add_up() -> None:
    step = breakdown(sending(Architecture.PS_WORKER), PAPER_TESTBED)
    assert step.ethernet_s == pytest.approx(1e9 / (3.125e9 * 0.7))
    assert step.pcie_s == pytest.approx(1e9 / (10e9 * 0.7))
    assert step.nvlink_s == 0


@pytest.mark.parametrize(("weights_mb", "traffic_mb"), [(204, 357), (416, 728)])
def test_ring_traffic_of_resnet50_and_speech(weights_mb: float, traffic_mb: float) -> None:
    assert ring_traffic(weights_mb * MB, 8.0) == pytest.approx(traffic_mb * MB)


def test_ring_traffic_of_one_gpu_is_none_and_of_many_nearly_twice_the_weights() -> None:
    assert ring_traffic(MB, 1.0) == 0
    assert ring_traffic(MB, 1e9) == pytest.approx(2 * MB)


RESNET50 = Features(
    architecture=Architecture.ALLREDUCE_LOCAL,
    num_gpus=8.0,
    flops=1.56e12,
    memory_bytes=31.9e9,
    input_bytes=38 * MB,
    traffic_bytes=357 * MB,
)


def test_resnet50_takes_a_quarter_of_a_second() -> None:
    step = breakdown(RESNET50, ALONE)
    assert step.total_s == pytest.approx(0.264, abs=5e-4)
    shares = [round(100 * part / step.total_s) for part in (step.compute_s, step.memory_s, step.input_s, step.nvlink_s)]
    assert shares == [77, 17, 2, 4]
    assert throughput(8.0, 64.0, step.total_s) == pytest.approx(8 * 64 / 0.2638, rel=1e-3)


def test_resnet50_on_one_v100_is_12_percent_below_the_published_rate() -> None:
    v100 = replace(ALONE, gpu_flops_per_s=15.7e12, memory_bytes_per_s=900e9)
    step = breakdown(replace(RESNET50, num_gpus=1.0), v100)
    assert throughput(1.0, 64.0, step.total_s) == pytest.approx(323, abs=2)


def test_input_contends_on_the_root_that_a_jobs_gpus_share() -> None:
    alone_s = breakdown(RESNET50, ALONE).input_s
    assert breakdown(RESNET50, PAPER_TESTBED).input_s == pytest.approx(8 * alone_s)
    four = replace(PAPER_TESTBED, gpus_per_pcie_root=4)
    assert breakdown(RESNET50, four).input_s == pytest.approx(4 * alone_s)
    workers = replace(RESNET50, architecture=Architecture.PS_WORKER)
    assert breakdown(workers, PAPER_TESTBED).input_s == pytest.approx(alone_s)


def test_porting_to_one_server_caps_the_gpus_so_that_the_two_gains_differ() -> None:
    job = sending(Architecture.PS_WORKER, num_gpus=32)
    ported = port(job, Architecture.ALLREDUCE_LOCAL, PAPER_TESTBED)
    assert ported.num_gpus == 8
    before_s, after_s = (breakdown(each, PAPER_TESTBED).total_s for each in (job, ported))
    assert before_s / after_s == pytest.approx(21.0)
    gain = throughput(ported.num_gpus, 1.0, after_s) / throughput(job.num_gpus, 1.0, before_s)
    assert gain == pytest.approx(21.0 / 4)
    assert port(job, Architecture.ALLREDUCE_CLUSTER, PAPER_TESTBED).num_gpus == 32
    assert port(job, Architecture.ONE_GPU, PAPER_TESTBED).num_gpus == 1


def test_full_overlap_is_bound_by_the_longest() -> None:
    step, hidden = breakdown(RESNET50, ALONE), breakdown(RESNET50, ALONE, "full")
    assert hidden.total_s == pytest.approx(step.compute_s + step.memory_s)
    assert hidden.communication_s == hidden.input_s == 0
    sent = breakdown(replace(RESNET50, traffic_bytes=1e12), ALONE, "full")
    assert sent.total_s == pytest.approx(1e12 / (50e9 * 0.7))
    fed = breakdown(replace(RESNET50, input_bytes=1e12), ALONE, "full")
    assert fed.total_s == pytest.approx(1e12 / (10e9 * 0.7))


def test_labels_and_paths_name_every_architecture() -> None:
    assert len(LABELS) == len(Architecture) == len(PATHS)
    assert Architecture.PS_WORKER.label == "PS/Worker"


AMOUNTS = st.floats(0, 1e15)
JOBS = st.builds(
    Features[float],
    architecture=st.sampled_from(list(Architecture)),
    num_gpus=st.integers(1, 512).map(float),
    flops=AMOUNTS,
    memory_bytes=AMOUNTS,
    input_bytes=AMOUNTS,
    traffic_bytes=AMOUNTS,
)
OVERLAPS = st.sampled_from(["none", "full"])
FACTORS = st.floats(1, 1000)


@given(JOBS, st.sampled_from(list(Resource)), FACTORS, OVERLAPS)
def test_a_faster_resource_makes_no_job_slower(job, resource, factor, overlap) -> None:
    field = {"compute": "gpu_flops_per_s"}.get(resource, f"{resource}_bytes_per_s")
    faster = PAPER_TESTBED.with_values(Provenance(PAPER_TESTBED.source(field).basis, ""), **{
        field: PAPER_TESTBED.peak(resource) * factor
    })  # fmt: skip
    before_s = breakdown(job, PAPER_TESTBED, overlap).total_s
    after_s = breakdown(job, faster, overlap).total_s
    assert after_s <= before_s * (1 + 1e-12)
    busy = breakdown(job, PAPER_TESTBED).with_rates(**{resource: factor})
    assert (busy.exposed() if overlap == "full" else busy).total_s == pytest.approx(after_s)


@given(JOBS)
def test_one_gpu_sends_nothing_but_to_parameter_servers(job) -> None:
    step = breakdown(replace(job, num_gpus=1.0), PAPER_TESTBED)
    if job.architecture is not Architecture.PS_WORKER:
        assert step.communication_s == 0
    assert breakdown(port(job, Architecture.ONE_GPU, PAPER_TESTBED), PAPER_TESTBED).communication_s == 0


@given(JOBS, OVERLAPS)
def test_parts_sum_to_the_step_and_overlap_never_makes_it_longer(job, overlap) -> None:
    step = breakdown(job, PAPER_TESTBED, overlap)
    assert sum(step.parts().values()) == pytest.approx(step.total_s, rel=1e-12)
    assert all(part >= 0 for part in step.parts().values())
    busy = breakdown(job, PAPER_TESTBED)
    assert busy.total_s / 3 <= breakdown(job, PAPER_TESTBED, "full").total_s * (1 + 1e-12)
    assert breakdown(job, PAPER_TESTBED, "full").total_s <= busy.total_s * (1 + 1e-12)
    assert set(step.parts()) == set(RESOURCE_OF_PART)


@given(JOBS, st.floats(1e-3, 1e3), OVERLAPS)
def test_units(job, factor, overlap) -> None:
    """Everything asked for `factor` times takes `factor` times as long; so does all of it at rates that much lower."""
    more = replace(
        job,
        flops=job.flops * factor,
        memory_bytes=job.memory_bytes * factor,
        input_bytes=job.input_bytes * factor,
        traffic_bytes=job.traffic_bytes * factor,
    )
    total_s = breakdown(job, PAPER_TESTBED, overlap).total_s
    assert breakdown(more, PAPER_TESTBED, overlap).total_s == pytest.approx(total_s * factor)
    slower = replace(PAPER_TESTBED, efficiency=dict.fromkeys(Resource, 0.35))
    assert breakdown(job, slower, overlap).total_s == pytest.approx(total_s * 2)


@given(st.lists(JOBS, min_size=1, max_size=8), OVERLAPS)
def test_many_jobs_at_once_are_as_each_alone(jobs, overlap) -> None:
    together = breakdown(stacked(jobs), PAPER_TESTBED, overlap)
    for number, job in enumerate(jobs):
        for name, part in breakdown(job, PAPER_TESTBED, overlap).parts().items():
            assert together.parts()[name][number] == pytest.approx(part)


@given(st.lists(JOBS, min_size=1, max_size=8), st.sampled_from(list(Architecture)))
def test_many_jobs_are_ported_as_each_alone(jobs, target) -> None:
    together = port(stacked(jobs), target, PAPER_TESTBED)
    assert list(together.num_gpus) == [port(job, target, PAPER_TESTBED).num_gpus for job in jobs]
    assert set(together.architecture) == {target}


def stacked(jobs: list[Features[float]]) -> Features[np.ndarray]:
    """The jobs as arrays."""
    columns = {name: np.array([getattr(job, name) for job in jobs]) for name in Features.__dataclass_fields__}
    return Features(**columns)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"pcie_bytes_per_s": 0}, "`pcie_bytes_per_s` must be a positive number, got 0"),
        ({"gpus_per_server": 0}, "`gpus_per_server` must be at least 1, got 0"),
        ({"infiniband_bytes_per_s": 1}, "`infiniband_bytes_per_s` must be one of gpu_flops_per_s"),
    ],
)
def test_hardware_checks_itself(values: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        PAPER_TESTBED.with_values(PAPER_TESTBED.source("name"), **values)


def test_efficiency_is_a_share_of_every_resource() -> None:
    with pytest.raises(ValueError, match=r"`efficiency.nvlink` must be above 0 and at most 1, got 1.5"):
        replace(PAPER_TESTBED, efficiency={**PAPER_TESTBED.efficiency, Resource.NVLINK: 1.5})
    with pytest.raises(ValueError, match="`efficiency` must name every resource, got none for nvlink"):
        replace(PAPER_TESTBED, efficiency={Resource.COMPUTE: 0.7, Resource.MEMORY: 0.7, Resource.PCIE: 0.7})


def test_what_is_recalled_is_marked_and_what_is_given_is_not() -> None:
    assert PAPER_TESTBED.source("memory_bytes_per_s").mark == " (unverified)"
    assert PAPER_TESTBED.source("ethernet_bytes_per_s").mark == ""
    own = Hardware(
        name="own",
        gpu_flops_per_s=1.0,
        memory_bytes_per_s=1.0,
        pcie_bytes_per_s=1.0,
        nvlink_bytes_per_s=1.0,
        ethernet_bytes_per_s=1.0,
    )
    assert own.source("memory_bytes_per_s").mark == ""


def test_a_breakdown_of_one_job_is_of_floats() -> None:
    step: Breakdown[float] = breakdown(RESNET50, ALONE)
    assert all(isinstance(part, float) for part in step.parts().values())

"""Published traces: read as far as their columns go, and what they lack is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.core.errors import JobTableError
from stoker.perf.fleet import examine, read_fleet
from stoker.records.fleet import FleetReport

TRACES = Path(__file__).parents[4] / "shared" / "data" / "traces"
MURI = (
    "job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time,"
    "resource_time_0,resource_time_1,resource_time_2,priority\n"
)


def found(path: Path) -> FleetReport:
    return examine(read_fleet(path))


def test_stages_of_muri_overlap_so_that_the_longest_is_the_step(tmp_path: Path) -> None:
    path = tmp_path / "muri.csv"
    rows = ("0,1,0,1,resnet18,128,1000,0,779,711,110,0,0", "1,4,0,1,bert,4,3000,0,178,0.5,160,0,0")
    path.write_text(MURI + "\n".join(rows) + "\n")
    report = found(path)
    assert report.shares[-1].at_job == {"input": 0.5, "computation": 0.5, "communication": 0.0}
    # 1 GPU for 1 s, 4 GPUs for 3 s.
    assert report.shares[-1].at_gpu["input"] == pytest.approx(1 / 13)
    assert report.weighting == "GPU-seconds"
    assert not report.upgrades
    assert "who gains from porting" in {each.what for each in report.missing}


def test_stragglers_are_the_slowest_over_the_mean_of_whole_steps(tmp_path: Path) -> None:
    path = tmp_path / "pai.csv"
    rows = (",worker,gpu,time,batch_time_norm", "0,0,25,1,100", "1,1,25,1,300", "2,0,25,2,100", "3,1,25,2,300")
    path.write_text("\n".join([*rows, "4,0,25,3,999"]) + "\n")
    report = found(path)
    assert report.notes[0].startswith("stragglers: the slowest of 2 workers takes 1.50 times the mean of its step")
    assert "(2 steps)" in report.notes[0]


def test_a_trace_with_a_word_for_a_number_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "philly.csv"
    path.write_text("timestamp,duration,num_gpus,gpu_time,cluster\n2017,long,1,1,a\n")
    with pytest.raises(JobTableError, match=r"`duration` of `philly.csv` must be a column of numbers"):
        found(path)


@pytest.mark.parametrize(
    ("name", "jobs", "gpus"),
    [
        ("muri_trace1.csv", 1494, 7398),
        ("muri_trace3.csv", 992, 9346),
        ("philly_2017.csv", 82247, 107235),
        ("alibaba_gpu_v2023_pods.csv", 7064, 6087),
        ("pai_minibatch_job_1.csv", 1, 10),
        ("pai_minibatch_job_4.csv", 1, 10),
    ],
)
def test_the_traces_themselves(name: str, jobs: int, gpus: int) -> None:
    if not (TRACES / name).exists():
        pytest.skip(f"no {name} beside this checkout")
    report = found(TRACES / name)
    assert (report.jobs, report.gpus) == (jobs, gpus)
    assert sum(group.job_frac for group in report.groups) == pytest.approx(1)
    assert report.missing
    assert not report.synthetic

"""Traces and tables of jobs: read as far as they go; a bad row is named with its column and value."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stoker.core.errors import ConfigError, JobTableError
from stoker.sim.cluster.demand import synergy_curve
from stoker.sim.cluster.scenario import Scenario
from stoker.sim.cluster.traces import PAI_FILES, find_trace, read_stragglers, read_trace
from stoker.sim.cluster.workload import ClusterMachines

TRACES = Path(__file__).parents[4] / "shared" / "data" / "traces"
MACHINES = ClusterMachines(nodes=8, gpus=8, cpus=64)
PHILLY = "timestamp,duration,num_gpus,gpu_time,cluster\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "jobs.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_table_of_jobs_is_read_in_order(tmp_path: Path) -> None:
    text = "gpus,arrival_s,duration_s,cpus_per_gpu,user,movable\n2,9,20,4.5,ann,0\n1,5,10,8,bob,\n"
    found = read_trace(written(tmp_path, text))
    assert found.arrival_s.tolist() == [0.0, 4.0]
    assert found.gpus.tolist() == [1, 2]
    assert found.users == ("bob", "ann")
    assert found.movable is not None
    assert found.movable.tolist() == [True, False]
    assert found.need_per_gpu is not None
    table = Scenario(machines=MACHINES, load=None, cpu_scale=2.0).table(found, 0)
    assert table.need_cpus.tolist() == [16.0, 18.0]
    assert table.user.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("arrival_s,gpus,duration_s\n0,1,5\n0,1,-5\n", "`duration_s` in line 3 of `jobs.csv` must be a positive "
         "number, got '-5'"),
        ("arrival_s,gpus,duration_s\n0,1.5,5\n", "`gpus` in line 2 of `jobs.csv` must be a whole number of at least 1, "
         "got '1.5'"),
        ("arrival_s,gpus,duration_s,movable\n0,1,5,maybe\n", "`movable` in line 2 of `jobs.csv` must be 0 or 1"),
        ("arrival_s,gpus,duration_s\n0,1\n", "line 2 of `jobs.csv` must have 3 cells, as the first line has, got 2"),
        ("arrival_s,gpus\n0,1\n", "`duration_s` must be a column of `jobs.csv`, got arrival_s, gpus"),
        ("arrival_s,gpus,duration_s\n", "`jobs.csv` must have at least one job, got none"),
        (PHILLY + "2017-10-09 07:01:55,12,1,12,a\nyesterday,12,1,12,a\n", "`timestamp` in line 3 of `jobs.csv` must be "
         "a date and time such as 2017-10-09 07:01:55, got 'yesterday'"),
        ("", "got an empty file"),
    ],
)  # fmt: skip
def test_a_bad_row_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(JobTableError) as caught:
        read_trace(written(tmp_path, text))
    assert said in str(caught.value)


def test_a_trace_that_is_not_there_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"`--traces DIR` must name the folder that holds philly_2017.csv"):
        find_trace("philly", None)
    with pytest.raises(ConfigError, match="must name a folder that holds muri_trace1"):
        find_trace("muri", tmp_path)
    with pytest.raises(ConfigError, match=r"`TRACE` must be philly, v2023, muri or a CSV file, got 'helios'"):
        find_trace("helios", None)


def test_stages_of_muri_give_the_cpus_of_full_speed(tmp_path: Path) -> None:
    stages = ",".join(f"resource_time_{number}" for number in range(3))
    head = f"job_id,num_gpu,submit_time,iterations,model_name,iteration_time,{stages}"
    rows = ("0,1,0,1000,resnet18,779,711,110,0", "1,2,5000,100,a2c,517,514,14,0")
    found = read_trace(written(tmp_path, "\n".join([head, *rows]) + "\n"))
    assert found.need_per_gpu is not None
    assert found.movable is not None
    assert found.need_per_gpu.tolist() == pytest.approx([711 / 110, 1.0])
    assert found.duration_s.tolist() == pytest.approx([110.0, 51.7])
    assert found.movable.tolist() == [True, False]


def test_faster_gpus_take_more_cpus_and_less_time(tmp_path: Path) -> None:
    found = read_trace(written(tmp_path, "arrival_s,gpus,duration_s,cpus_per_gpu\n0,2,100,4\n"))
    table = Scenario(machines=MACHINES, load=None, speedup=2.0, cut_s=None).table(found, 0)
    assert table.duration_s.tolist() == [50.0]
    assert table.need_cpus.tolist() == [16.0]
    assert float((table.widths * table.slopes).sum()) == pytest.approx(1.0)


def test_curves_of_synergy_begin_and_end_as_profiled() -> None:
    curve = synergy_curve("resnet18")
    assert curve.need_cpus == 9
    # A little above the profile, which is not concave from 1 to 3 CPUs.
    assert 1 / 2.4 <= curve.rate(3) <= 1.02 / 2.4
    assert synergy_curve("bert").points == ((1.0, 1.0),)


def test_load_is_gpu_time_at_full_speed(tmp_path: Path) -> None:
    rows = "".join(f"{number * 7},{1 + number % 3},{50 + number},4\n" for number in range(50))
    found = read_trace(written(tmp_path, "arrival_s,gpus,duration_s,cpus_per_gpu\n" + rows))
    table = Scenario(machines=MACHINES, load=0.5, jobs=None).table(found, 0)
    assert float((table.gpus * table.duration_s).sum()) / (64 * table.span_s) == pytest.approx(0.5)


def test_stragglers_are_the_slowest_over_the_mean(tmp_path: Path) -> None:
    rows = ",worker,gpu,time,batch_time_norm\n0,0,25,1,100\n1,1,25,1,300\n2,0,25,2,100\n"
    for name in PAI_FILES:
        (tmp_path / name).write_text(rows, encoding="utf-8")
    assert read_stragglers(tmp_path) == (1.5,) * 4
    found = read_trace(written(tmp_path, "arrival_s,gpus,duration_s,cpus_per_gpu\n0,2,100,4\n1,1,100,4\n"))
    table = Scenario(machines=MACHINES, load=None, jobs=None, cut_s=None, stragglers=(1.5,) * 4).table(found, 0)
    assert table.duration_s.tolist() == [150.0, 100.0]
    with pytest.raises(ConfigError, match="must name a folder that holds pai_minibatch_job_1"):
        read_stragglers(None)


@pytest.mark.skipif(not TRACES.is_dir(), reason="the traces are not beside the repository")
@pytest.mark.parametrize(("name", "jobs"), [("philly", 82_247), ("v2023", 3_900), ("muri", 1_494)])
def test_published_traces_are_read(name: str, jobs: int) -> None:
    found = read_trace(find_trace(name, TRACES))
    assert 0.9 * jobs <= len(found.gpus) <= jobs
    assert (np.diff(found.arrival_s) >= 0).all()
    table = Scenario(machines=MACHINES, demand="goldminer" if found.need_per_gpu is None else "trace").table(found, 0)
    assert len(table) == 500

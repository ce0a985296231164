"""Tables of jobs: what is read, and what is refused with its row, column, value and rule."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stoker.core.errors import JobTableError
from stoker.perf.equations import Architecture
from stoker.perf.fleet import Fleet, examine, read_fleet, synthetic_fleet, write_csv
from stoker.perf.fleet.jobs import REQUIRED

HEAD = "job,architecture,num_gpus,flops,memory_bytes,input_bytes,traffic_bytes"
GOOD = "a,PS/Worker,16,1e12,1e10,1e6,1e9"


def read(folder: Path, *lines: str, head: str = HEAD) -> Fleet:
    path = folder / "jobs.csv"
    path.write_text("\n".join([head, *lines]) + "\n", encoding="utf-8")
    return read_fleet(path)


def test_a_table_becomes_arrays(tmp_path: Path) -> None:
    fleet = read(tmp_path, GOOD, "b,1w1g,1,1e12,0,0,0")
    assert fleet.names == ["a", "b"]
    assert fleet.group.tolist() == [Architecture.PS_WORKER, Architecture.ONE_GPU]
    assert fleet.features is not None
    assert fleet.features.traffic_bytes.tolist() == [1e9, 0]
    assert not fleet.synthetic
    assert fleet.weight_bytes is None
    assert fleet.weight.tolist() == [16, 1]


@pytest.mark.parametrize("word", ["ps/worker", "PS-Worker", "ps_worker", "PSWorker", " PS / Worker "])
def test_architectures_are_known_however_they_are_written(tmp_path: Path, word: str) -> None:
    assert read(tmp_path, GOOD.replace("PS/Worker", word)).group.tolist() == [Architecture.PS_WORKER]


def test_names_are_optional_and_rows_stand_in(tmp_path: Path) -> None:
    fleet = read(tmp_path, "1w1g,1,1,1,1,0", head=HEAD.removeprefix("job,"))
    assert fleet.names is None
    assert fleet.job_name(0) == "row 1"


def test_other_columns_blank_lines_and_a_byte_order_mark_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_text("\ufeff" + HEAD + ",team\n\n" + GOOD + ",x\n\n", encoding="utf-8")
    assert len(read_fleet(path)) == 1


def test_durations_make_gpu_seconds_unless_one_is_missing(tmp_path: Path) -> None:
    fleet = read(tmp_path, GOOD + ",10", "b,1w1g,1,1,1,1,0,5", head=HEAD + ",duration_s")
    assert fleet.weight.tolist() == [160, 5]
    assert examine(fleet).weighting == "GPU-seconds"
    fleet = read(tmp_path, GOOD + ",10", "b,1w1g,1,1,1,1,0,", head=HEAD + ",duration_s")
    assert fleet.weight.tolist() == [16, 1]
    assert fleet.notes == ("`duration_s` is empty for 1 jobs: the GPU level counts GPUs",)


@pytest.mark.parametrize(
    ("line", "column", "value", "rule"),
    [
        (GOOD.replace("1e12", "abc"), "flops", "abc", "a number from 0 to 1e+30"),
        (GOOD.replace("1e12", "-1"), "flops", "-1", "a number from 0 to 1e+30"),
        (GOOD.replace("1e12", "inf"), "flops", "inf", "a number from 0 to 1e+30"),
        (GOOD.replace("1e12", "nan"), "flops", "nan", "a number from 0 to 1e+30"),
        (GOOD.replace("1e12", ""), "flops", "", "a number from 0 to 1e+30"),
        (GOOD.replace("16", "2.5"), "num_gpus", "2.5", "a whole number from 1 to 1,000,000"),
        (GOOD.replace("16", "0"), "num_gpus", "0", "a whole number from 1 to 1,000,000"),
        (GOOD.replace("PS/Worker", "1w1g"), "num_gpus", "16", "1 for the architecture 1w1g"),
        (GOOD.replace("PS/Worker", "ring"), "architecture", "ring", "one of 1w1g, 1wng, PS/Worker"),
        ("a,PS/Worker,16,0,0,0,1", "flops", "0", "at least 1, or memory_bytes or input_bytes"),
    ],
)
def test_a_wrong_value_is_named_with_its_line_column_and_rule(
    tmp_path: Path, line: str, column: str, value: str, rule: str
) -> None:
    with pytest.raises(JobTableError) as caught:
        read(tmp_path, GOOD, "", GOOD, line)
    message = str(caught.value)
    assert message.startswith(f"`{column}` in line 5 of `jobs.csv` must be {rule}")
    assert f"got {value!r}" in message
    assert caught.value.fields["row"] == "line 5"
    assert caught.value.fields["value"] == value


def test_lines_are_counted_as_editors_do_where_cells_hold_line_breaks(tmp_path: Path) -> None:
    with pytest.raises(JobTableError, match="in line 4 of"):
        read(tmp_path, GOOD.replace("a,", '"two\nlines",'), GOOD.replace("16", "x"))


def test_an_optional_column_has_its_rule_too(tmp_path: Path) -> None:
    with pytest.raises(JobTableError, match=r"`duration_s` in line 2 of `jobs.csv` must be a positive number"):
        read(tmp_path, GOOD + ",0", head=HEAD + ",duration_s")


@pytest.mark.parametrize("missing", REQUIRED)
def test_a_missing_column_is_named(tmp_path: Path, missing: str) -> None:
    names = [name for name in HEAD.split(",") if name != missing]
    with pytest.raises(JobTableError, match=f"`{missing}` must be a column of `jobs.csv`, got job, "):
        read(tmp_path, head=",".join(names))


def test_a_short_row_is_named(tmp_path: Path) -> None:
    with pytest.raises(JobTableError, match=r"line 3 of `jobs.csv` must have 7 cells, as the first line has, got 2"):
        read(tmp_path, GOOD, "a,b")


def test_a_column_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(JobTableError, match="must have each column once, got `flops` twice"):
        read(tmp_path, GOOD + ",1", head=HEAD + ",flops")


def test_tables_that_hold_nothing_or_are_none(tmp_path: Path) -> None:
    with pytest.raises(JobTableError, match="must have at least one job, got none"):
        read(tmp_path)
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(JobTableError, match="got an empty file"):
        read_fleet(tmp_path / "empty.csv")
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(JobTableError, match="must be CSV in UTF-8"):
        read_fleet(tmp_path / "bytes.csv")
    with pytest.raises(JobTableError, match="must be a file that can be read: No such file"):
        read_fleet(tmp_path / "none.csv")


def test_a_made_up_fleet_is_written_and_read_back_as_one(tmp_path: Path) -> None:
    fleet, path = synthetic_fleet(500, seed=3), tmp_path / "jobs.csv"
    write_csv(fleet, path)
    again = read_fleet(path)
    assert again.synthetic
    assert again.names == fleet.names
    assert again.group.tolist() == fleet.group.tolist()
    assert fleet.features is not None
    assert again.features is not None
    for name in ("num_gpus", "flops", "memory_bytes", "input_bytes", "traffic_bytes"):
        assert np.allclose(getattr(again.features, name), getattr(fleet.features, name), rtol=1e-6)
    assert again.weight_bytes is not None
    assert fleet.weight_bytes is not None
    assert np.allclose(again.weight_bytes, fleet.weight_bytes, rtol=1e-5)


def test_parquet_is_read_as_csv_is(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {
        "job": ["a", "b"],
        "architecture": ["PS/Worker", "1w1g"],
        "num_gpus": [16, 1],
        "flops": [1e12, 1e12],
        "memory_bytes": [1, 1],
        "input_bytes": [1, 1],
        "traffic_bytes": [1, 0],
        "duration_s": [10.0, None],
    }
    path = tmp_path / "jobs.parquet"
    parquet.write_table(pyarrow.table(columns), path)
    fleet = read_fleet(path)
    assert fleet.names == ["a", "b"]
    assert fleet.num_gpus.tolist() == [16, 1]
    parquet.write_table(pyarrow.table({**columns, "num_gpus": [16, 0]}), path)
    with pytest.raises(JobTableError, match=r"`num_gpus` in row 2 of `jobs.parquet` must be a whole number"):
        read_fleet(path)
    parquet.write_table(pyarrow.table({**columns, "flops": ["a", "b"]}), path)
    with pytest.raises(JobTableError, match=r"`flops` of `jobs.parquet` must be a column of numbers, got string"):
        read_fleet(path)
    path.write_bytes(b"no")
    with pytest.raises(JobTableError, match=r"`jobs.parquet` must be a Parquet file"):
        read_fleet(path)

import subprocess
import sys

import pytest

from stoker.perf.study.tables.rows import Published, published
from stoker.perf.study.workloads.definitions import workload_of
from stoker.perf.study.workloads.workload import Excluded, Workload

ROWS = [row for row in published() if row.source in ("lambda-v1", "nvidia-dle")]
WORKLOADS = [(row, found) for row in ROWS if isinstance(found := workload_of(row), Workload)]


def one(**columns: object) -> tuple[Published, Workload]:
    return next(
        (row, found) for row, found in WORKLOADS if all(getattr(row, name) == value for name, value in columns.items())
    )


def test_at_most_a_quarter_of_the_rows_is_left_out_each_with_its_reason() -> None:
    excluded = [found for row in ROWS if isinstance(found := workload_of(row), Excluded)]
    assert len(excluded) + len(WORKLOADS) == len(ROWS) == 1361
    assert len(excluded) == 47
    assert all(found.reason for found in excluded)


def test_every_workload_says_where_its_assumptions_come_from() -> None:
    for row, found in WORKLOADS:
        assert found.sources, row
        assert all(any(word in source for word in ("@", "issue", "LJ Speech", "arXiv")) for source in found.sources), (
            found
        )
        assert found.batch > 0
        assert found.counted > 0
        assert found.accumulation > 0
        assert all(size > 0 for wanted in found.inputs for size in wanted.shape)


def test_a_step_takes_as_long_as_the_table_says_where_it_says_it() -> None:
    """Except where a batch was read wrongly, an accumulation left out, or 2**20 rounded."""
    compared = 0
    for row, found in WORKLOADS:
        if row.step_s and row.model != "BERT (TF1)":
            assert found.step_s(row) == pytest.approx(row.step_s, rel=2e-3), row
            compared += 1
    assert compared == 706


def test_what_the_publishers_tables_hide() -> None:
    _, tacotron2 = one(model="tacotron2", precision="fp16", gpu="H100-SXM")
    assert tacotron2.precision == "tf32", "its program did not know the switch"
    _, old = one(model="waveglow", precision="fp16", gpu="V100-16GB-SXM")
    assert old.precision == "fp32"
    _, ncf = one(model="ncf", precision="fp16", gpu="A100-80GB-SXM")
    assert ncf.precision == "tf32", "without the switch on cards of 80 GB"
    assert one(model="ncf", precision="fp16", gpu="A100-40GB-PCIe")[1].precision == "fp16"
    _, answers = one(model="BERT (TF1)", batch_per_gpu=42.0, precision="fp32")
    assert answers.batch == 2, "4,2 in the table"
    _, pretraining = one(model="BERT (TF1)", seq_len=128, gpus=8, gpu="A100-40GB-SXM", precision="tf32")
    assert (pretraining.batch, pretraining.accumulation) == (64, 128)
    _, mxnet = one(model="ResNet50v1.5 (MXNet)", gpu="V100-16GB-SXM", precision="fp32")
    assert mxnet.batch == 96
    _, efficient = one(model="EfficientNet-v1 (TF2)", gpus=64, gpu="V100-32GB-SXM", precision="fp32")
    assert efficient.inputs[0].shape == (32, 3, 380, 380)


def test_few_programs_make_up_all_rows() -> None:
    assert len({found.program for _, found in WORKLOADS}) == 206


@pytest.mark.parametrize(
    ("model", "per_item"),
    [("gnmt", 47.6), ("waveglow", 8000), ("transformerxlbase", 192), ("transformerxllarge", 256), ("tacotron2", 565)],
)
def test_units_that_are_no_items(model: str, per_item: float) -> None:
    row, found = one(model=model)
    assert found.counted == pytest.approx(per_item * row.batch_per_gpu)
    assert found.step_s(row) == pytest.approx(row.gpus * row.batch_per_gpu * per_item / row.throughput)


def test_millions_of_samples_a_second() -> None:
    row, found = one(model="NCF (TF1)", gpus=1)
    assert found.step_s(row) == pytest.approx(2**20 / (row.throughput * 1e6))


@pytest.mark.integration
def test_definitions_need_no_torch() -> None:
    program = (
        "import sys; from stoker.perf.study.scoreboard import left_out\n"
        "from stoker.perf.study.tables.rows import published\n"
        "left_out(published()); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)

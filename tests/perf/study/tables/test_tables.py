import gzip
from collections import Counter
from pathlib import Path

import pytest

from stoker.perf.study.tables.compiling import compiled, family_of, gpu_of, precision_of
from stoker.perf.study.tables.rows import COLUMNS, published

COLLECTED = Path(__file__).parents[5] / "shared" / "data" / "throughput"


def test_every_row_is_there_in_the_same_words() -> None:
    rows = published()
    assert Counter(row.source for row in rows) == {
        "vtrain-single": 1440,
        "lambda-v1": 957,
        "nvidia-dle": 404,
        "llm-foundry": 139,
    }
    assert {row.precision for row in rows} == {"fp32", "tf32", "fp16", "bf16"}
    assert not {row.gpu for row in rows if row.precision == "fp32"} - {"V100-16GB-SXM", "V100-32GB-SXM", "RTX-8000"}
    assert all(row.throughput > 0 and row.gpus > 0 and row.accumulation > 0 for row in rows)
    assert all(row.url.startswith("https://") for row in rows)


def test_what_gives_the_result_away_is_no_column() -> None:
    assert not {name for name in COLUMNS if "mfu" in name or "hfu" in name}
    assert not [row for row in published() if "HFU" in row.note]


def test_repetitions_share_a_configuration() -> None:
    lambda_rows = [row for row in published() if row.source == "lambda-v1"]
    assert len({row.configuration for row in lambda_rows}) == 619


def test_arithmetic_is_not_called_measured() -> None:
    assert {row.source for row in published() if not row.measured} == {"vtrain-single"}


@pytest.mark.skipif(not COLLECTED.is_dir(), reason="the collected tables are not at hand")
def test_the_packed_tables_are_those_that_were_collected() -> None:
    for place, packed in compiled(COLLECTED).items():
        assert gzip.decompress(packed) == gzip.decompress(place.read_bytes())


@pytest.mark.parametrize(
    ("words", "gpu", "name"),
    [("mixed", "A100-80GB-SXM", "fp16"), ("fp32", "H100-SXM", "tf32"), ("fp32", "V100-16GB-SXM", "fp32")],
)
def test_precision_is_what_ran(words: str, gpu: str, name: str) -> None:
    assert precision_of(words, gpu) == name


def test_unknown_words_are_named() -> None:
    with pytest.raises(ValueError, match="`hardware` names no known GPU: 'TPU v3'"):
        gpu_of("TPU v3")
    with pytest.raises(ValueError, match="`model` belongs to no known family: 'AlexNet'"):
        family_of("AlexNet")
    with pytest.raises(ValueError, match="`precision` must be"):
        precision_of("int8", "A10")

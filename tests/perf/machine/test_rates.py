"""The file that keeps a calibration."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.perf.machine.rates import Rates, RatesError, Sample, Work, default_path, load, save
from tests.perf.machine.rates_of_old import made_rates


def test_what_is_kept_is_read_back(tmp_path: Path) -> None:
    rates = made_rates()
    path = tmp_path / "deep" / "machine.json"
    save(rates, path)
    assert load(path) == rates
    assert [found.name for found in path.parent.iterdir()] == ["machine.json"]


def test_the_file_lies_in_the_state_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_path() == tmp_path / "stoker" / "machine.json"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_path() == tmp_path / ".local" / "state" / "stoker" / "machine.json"


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (None, "cannot be read"),
        (b"", "is no calibration"),
        (b"[1]", "is no calibration"),
        (b'{"format": 0}', "must be of format 1, got 0"),
        (b'{"format": 1}', "is no calibration"),
    ],
)
def test_a_file_that_cannot_be_used_says_what_to_do(tmp_path: Path, content: bytes | None, what: str) -> None:
    path = tmp_path / "machine.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RatesError, match=what) as caught:
        load(path)
    assert "stoker perf calibrate" in str(caught.value)


def test_samples_are_plain_data() -> None:
    work = Work(curve="add", dims=(7.0, 3.0), flops=0.0, bytes=84.0)
    rates = Rates(
        machine="m", threads=1, torch="t", measured_at="now", took_s=1.0, cache_bytes=1, host_s={"forward": 1e-6},
        samples=(Sample(work=work, warm_s=1e-6, cold_s=2e-6),),
    )  # fmt: skip
    assert rates.samples[0].work.dims == (7.0, 3.0)

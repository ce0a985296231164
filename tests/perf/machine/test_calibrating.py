"""A calibration of this machine, as short as can be."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stoker.cli.perf.calibrate import main
from stoker.core.errors import ConfigError
from stoker.perf.features.step import characterise
from stoker.perf.machine import save
from stoker.perf.machine.allocator import fault_seconds_per_byte
from stoker.perf.machine.calibrating import calibrate, last_cache_bytes, processor
from stoker.perf.machine.matrix_probes import matrix_probes
from stoker.perf.machine.measuring import covering_order, measured
from stoker.perf.machine.memory_probes import memory_probes
from stoker.perf.machine.operands import Operands
from tests.perf.machine.rates_of_old import made_rates


def features_file(folder: Path, target: str = "cpu") -> Path:
    model = torch.nn.Sequential(torch.nn.Linear(100, 200), torch.nn.ReLU(), torch.nn.Linear(200, 10))
    step = characterise(model, torch.rand(32, 100), optimizer=torch.optim.Adam, target=target, name="perceptron")
    path = folder / "step.json"
    path.write_bytes(step.to_json())
    return path


@pytest.mark.slow("measures this machine")
@pytest.mark.integration
@pytest.mark.timeout(300)  # half a minute on a quiet machine; probes are repeated on a busy one
def test_this_machine_is_measured_and_a_step_predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "machine.json"
    rates = calibrate(seconds=3.0, thin=60, exchange=False)
    assert rates.took_s > 0
    assert {"forward", "backward", "optimizer"} == set(rates.host_s) == set(rates.coldness)
    assert all(0 < sample.warm_s <= sample.cold_s for sample in rates.samples)
    assert all(0 <= share <= 1 for share in rates.coldness.values())
    save(rates, kept)
    assert main(["--predict", str(features_file(tmp_path)), "--file", str(kept)]) == 0
    assert capsys.readouterr().out.startswith("perceptron: ")


@pytest.mark.slow("measures this machine, at three sizes of each kind")
@pytest.mark.integration
def test_a_machine_too_slow_for_all_sizes_is_measured_at_some_of_each_kind() -> None:
    probes = [*matrix_probes(), *memory_probes()]
    samples, _ = measured(probes, Operands(32_000_000), last_cache_bytes(), time.perf_counter(), lambda _share: None)
    counts = Counter(sample.work.curve for sample in samples)
    assert counts.keys() == {probe.work.curve for probe in probes}
    assert set(counts.values()) == {3}
    assert len(samples) < 0.3 * len(probes)


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=60))
def test_every_probe_has_its_turn_and_the_first_are_of_every_curve(curves: list[str]) -> None:
    order, least = covering_order(curves)
    assert sorted(order) == list(range(len(curves)))
    for curve, count in Counter(curves).items():
        first = [place for place in order[:least] if curves[place] == curve]
        assert len(first) == min(3, count)


def test_sizes_of_a_curve_come_far_apart_first() -> None:
    assert covering_order(["a"] * 8)[0] == [0, 4, 2, 6, 1, 5, 3, 7]


def test_a_step_is_predicted_with_the_rates_that_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept, step = tmp_path / "machine.json", features_file(tmp_path)
    save(made_rates(), kept)
    assert main(["--predict", str(step), "--file", str(kept)]) == 0
    shown = capsys.readouterr().out
    assert "90% interval" in shown
    assert "optimizer" in shown
    assert main(["--predict", str(step), "--file", str(kept), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(found["parts"].values()) == pytest.approx(found["seconds"])


def test_features_for_another_target_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "machine.json"
    save(made_rates(), kept)
    assert main(["--predict", str(features_file(tmp_path, "cuda")), "--file", str(kept)]) == 1
    assert "refused: features of perceptron are for cuda" in capsys.readouterr().out


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    step, kept = features_file(tmp_path), tmp_path / "machine.json"
    with pytest.raises(ConfigError, match="stoker perf calibrate"):
        main(["--predict", str(step), "--file", str(kept)])
    with pytest.raises(ConfigError, match="cannot be read"):
        main(["--predict", str(tmp_path / "none.json"), "--file", str(kept)])
    step.write_text("{}")
    with pytest.raises(ConfigError, match="holds no features"):
        main(["--predict", str(step), "--file", str(kept)])


@pytest.mark.parametrize(("option", "value"), [("--seconds", "0"), ("--seconds", "nan"), ("--threads", "0")])
def test_options_that_mean_nothing_are_refused(option: str, value: str) -> None:
    with pytest.raises(ConfigError, match=option):
        main([option, value])


def test_what_the_system_says_of_itself(tmp_path: Path) -> None:
    for index, (level, size) in enumerate((("1", "32K"), ("3", "8192K"), ("2", "512K"))):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        (folder / "level").write_text(level)
        (folder / "size").write_text(size)
    assert last_cache_bytes(tmp_path) == 8 << 20
    assert last_cache_bytes(tmp_path / "none") > 0
    info = tmp_path / "cpuinfo"
    info.write_text("processor : 0\nmodel name\t: Some CPU @ 3 GHz\n")
    assert processor(info) == "Some CPU @ 3 GHz"
    assert processor(tmp_path / "none")


def test_fresh_memory_costs_something() -> None:
    assert 0 < fault_seconds_per_byte(rounds=2) < 1e-6

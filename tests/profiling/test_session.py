"""A process that is profiled, in this one: what its steps are, and where their time goes."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from stoker.perf.diagnosis.breakdown import StepBreakdown, break_down
from stoker.records.profile import RankRecord, rank_name, read_rank
from stoker.run.profiling.options import ProfileOptions
from stoker.run.profiling.session import ProfileSession, flush_files
from stoker.run.run_context import Active
from stoker.run.settings import RunSettings

REST_S = 0.01


class Rows(Dataset[Tensor]):
    def __init__(self, count: int, rest_s: float = 0.0) -> None:
        self.count, self.rest_s = count, rest_s

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        time.sleep(self.rest_s)
        return torch.full((64,), float(index))


def profiled(program: Callable[[], object], folder: Path, **options: Any) -> tuple[RankRecord, StepBreakdown]:
    """What is measured of a program that goes on when that is done."""
    chosen = ProfileOptions(**{"steps": 12, "warmup": 1, "then": "continue", **options})
    active = Active(
        settings=RunSettings(), run_dir=str(folder / "run"), profile=chosen.to_json(), program=("train.py",)
    )
    stock = _BaseDataLoaderIter.__next__
    session = ProfileSession(active)
    session.start()
    try:
        program()
    finally:
        session.end()
    assert _BaseDataLoaderIter.__next__ is stock
    record = read_rank(folder / "run" / rank_name(0))
    found = break_down(record)
    assert found is not None
    return record, found


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    """Tests that ran in this process before may have compiled something, which leaves modules without ranges."""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    if utils is not None:
        utils.counters.clear()


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))


def step_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[Tensor], None]:
    def step(x: Tensor) -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


class TestParts:
    def test_sleep_is_found_where_it_is(self, tmp_path: Path) -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

        def program() -> None:
            for x in DataLoader(Rows(16 * 4, REST_S / 4), batch_size=4):
                optimizer.zero_grad()
                loss = model(x).square().mean()
                time.sleep(2 * REST_S)
                loss.backward()
                optimizer.step()
                time.sleep(3 * REST_S)

        record, found = profiled(program, tmp_path)
        assert record.complete
        # Sleeping takes longer on a busy machine, never less: what one part had of another's would miss there.
        assert found.seconds["input"] > 0.9 * REST_S
        assert found.seconds["host"] > 1.9 * REST_S
        assert found.seconds["other"] > 2.9 * REST_S
        assert sum(found.parts().values()) == pytest.approx(found.pace.seconds)
        for sample in record.samples:
            assert sum(sample.seconds.values()) == pytest.approx(sample.period_s)

    def test_operators_belong_to_modules_both_ways(self, tmp_path: Path) -> None:
        model = nn.Sequential()
        model.add_module("wide", nn.Linear(512, 2048))
        model.add_module("act", nn.GELU())
        model.add_module("narrow", nn.Linear(2048, 8))
        step = step_of(model, torch.optim.SGD(model.parameters(), lr=1e-6))

        def program() -> None:
            for _ in range(16):
                step(torch.randn(256, 512))

        record, _ = profiled(program, tmp_path)
        times = {module.path: module for module in record.modules}
        assert times["wide"].compute_s > times["narrow"].compute_s > 0
        assert times["act"].memory_s > 0
        assert times["act"].compute_s == 0
        products = {op.name: op.calls for op in record.operators if op.label == "compute"}
        assert products["aten::addmm"] == pytest.approx(2)
        assert products["aten::mm"] == pytest.approx(3), "no gradient of the input"

    def test_a_closure_is_the_programs_work(self, tmp_path: Path) -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = model(torch.ones(8, 64)).square().mean()
            time.sleep(REST_S)
            loss.backward()
            return loss

        def program() -> None:
            for _ in range(16):
                optimizer.step(closure)

        _, found = profiled(program, tmp_path)
        assert found.seconds["host"] > 0.9 * REST_S
        assert found.seconds["optimizer"] < REST_S / 2
        assert found.seconds["compute"] > 0


class TestSteps:
    def test_two_optimizers_in_turn_are_one_step(self, tmp_path: Path) -> None:
        steps = [step_of(model, torch.optim.Adam(model.parameters())) for model in (net(), net())]

        def program() -> None:
            for x in DataLoader(Rows(16 * 4), batch_size=4):
                for step in steps:
                    step(x)

        record, _ = profiled(program, tmp_path)
        assert record.optimizers == 2
        assert {step.batches for step in record.steps} == {1}

    def test_accumulated_batches(self, tmp_path: Path) -> None:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)

        def program() -> None:
            for number, x in enumerate(DataLoader(Rows(60 * 2), batch_size=2)):
                model(x).square().mean().backward()
                if number % 4 == 3:
                    optimizer.step()
                    optimizer.zero_grad()

        record, _ = profiled(program, tmp_path)
        assert {step.batches for step in record.steps} == {4}

    def test_without_an_optimizer_batches_count(self, tmp_path: Path) -> None:
        model = net()

        def program() -> None:
            with torch.no_grad():
                for x in DataLoader(Rows(70 * 2), batch_size=2):
                    model(x)

        record, found = profiled(program, tmp_path)
        assert record.unit == "batch"
        assert record.complete
        assert found.seconds["compute"] > 0

    def test_a_short_program_counts_as_far_as_it_goes(self, tmp_path: Path) -> None:
        step = step_of(model := net(), torch.optim.SGD(model.parameters(), lr=1e-6))

        def program() -> None:
            for _ in range(4):
                step(torch.ones(2, 64))

        record, found = profiled(program, tmp_path, warmup=5)
        assert not record.complete
        assert found.steps == 2
        assert any("during warm-up" in note for note in record.notes)

    def test_batches_of_another_thread_are_not_waited_for(self, tmp_path: Path) -> None:
        step = step_of(model := net(), torch.optim.SGD(model.parameters(), lr=1e-6))
        done = threading.Event()

        def beside() -> None:
            for _ in DataLoader(Rows(10_000, 0.001), batch_size=2):
                if done.is_set():
                    break

        def program() -> None:
            thread = threading.Thread(target=beside)
            thread.start()
            for _ in range(16):
                step(torch.ones(2, 64))
            done.set()
            thread.join()

        record, _ = profiled(program, tmp_path)
        assert fmean(each.wait_s for each in record.steps) == 0


class TestHarm:
    def test_an_exception_inside_of_a_module_is_the_programs(self, tmp_path: Path) -> None:
        class Moody(nn.Module):
            calls = 0

            def forward(self, x: Tensor) -> Tensor:
                Moody.calls += 1
                if Moody.calls % 2:
                    raise RuntimeError("not today")
                return x

        model = nn.Sequential(nn.Linear(64, 8), Moody())
        step = step_of(model, torch.optim.SGD(model.parameters(), lr=1e-6))

        def program() -> None:
            for _ in range(32):
                with contextlib.suppress(RuntimeError):
                    step(torch.ones(2, 64))

        record, _ = profiled(program, tmp_path)
        assert record.samples
        assert {module.path for module in record.modules} <= {"", "0", "1"}

    def test_weights_are_those_of_plain_python(self, tmp_path: Path) -> None:
        def train() -> list[Tensor]:
            torch.manual_seed(1)
            model = nn.Sequential(nn.Linear(64, 32), nn.Dropout(0.5), nn.Linear(32, 1))
            step = step_of(model, torch.optim.Adam(model.parameters()))
            for x in DataLoader(Rows(20 * 4), batch_size=4, shuffle=True):
                step(x)
            return [parameter.detach() for parameter in model.parameters()]

        plain, measured = train(), []
        profiled(lambda: measured.extend(train()), tmp_path)
        assert all(torch.equal(a, b) for a, b in zip(plain, measured, strict=True))

    def test_nothing_but_a_launcher_leaves_nothing(self, tmp_path: Path) -> None:
        chosen = ProfileOptions(steps=4).to_json()
        session = ProfileSession(Active(settings=RunSettings(), run_dir=str(tmp_path / "run"), profile=chosen))
        session.start()
        session.end()
        assert not (tmp_path / "run").exists()

    def test_files_are_written_out(self, tmp_path: Path) -> None:
        with (tmp_path / "log.txt").open("w") as file:
            file.write("a line")
            flush_files()
            assert (tmp_path / "log.txt").read_text() == "a line"

    @pytest.mark.integration
    def test_compiled_models_are_not_compiled_again(self, tmp_path: Path) -> None:
        model = net()
        compiled: Any = torch.compile(model, backend="aot_eager")
        step = step_of(compiled, torch.optim.SGD(model.parameters(), lr=1e-6))
        counts: list[int] = []

        def program() -> None:
            from torch._dynamo.utils import counters

            for _ in range(16):
                step(torch.ones(2, 64))
                counts.append(counters["frames"]["total"])

        profiled(program, tmp_path)
        assert counts[0] == counts[-1]

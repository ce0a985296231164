"""`stoker run --fit` and host memory on a GPU: equal losses and files, peaks within the budget. Needs one GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from stoker.core.patching import Patches
from stoker.perf.memory.needs import CONTEXT_BYTES
from stoker.records.fitting import FitRun
from stoker.records.fitting_file import read_fits
from stoker.train.fitting.offloading import Offloading
from stoker.train.fitting.optimizing import UsedUp
from stoker.train.fitting.states_away import StatesAway
from tests.gpu.programs.fit_program import Block
from tests.train.bits import same

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
PROGRAM = Path(__file__).parent / "programs/fit_program.py"


def started(folder: Path, name: str, *options: str) -> dict[str, Any]:
    """What the program writes, under `stoker run` with some options or, without one, under plain python."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("STOKER_", "PYTORCH_"))}
    environ["XDG_CACHE_HOME"] = str(folder / "cache")
    before = ("-m", "stoker", "run", "--run-dir", str(folder / name), *options) if options else ()
    done = subprocess.run(
        [sys.executable, *before, str(PROGRAM), str(folder / name)], env=environ, cwd=folder, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads((folder / f"{name}.json").read_text())


def test_a_program_fits_with_equal_losses_and_files(tmp_path: Path) -> None:
    plain = started(tmp_path, "plain")
    budget = int(0.7 * plain["reserved"]) + int(CONTEXT_BYTES)
    fitted = started(tmp_path, "fitted", "--fit", "auto", "--device-memory", f"{budget}B")
    assert fitted["losses"] == plain["losses"]
    assert fitted["reserved"] + int(CONTEXT_BYTES) <= budget
    ours, theirs = (torch.load(tmp_path / f"{name}.pt", weights_only=True) for name in ("fitted", "plain"))
    assert same(ours, theirs)
    run: FitRun
    (run,) = read_fits(tmp_path / "fitted").runs
    assert run.left == ()
    assert run.applied
    assert run.counted_bytes == pytest.approx(run.plan.peak_bytes, rel=0.02)


def trained(change: Callable[[nn.Sequential, Optimizer, Patches], list[Callable[[], None]]]) -> tuple[list[Any], int]:
    """Losses, weights and states of five steps, and the most bytes allocated in the last three."""
    torch.manual_seed(0)
    model = nn.Sequential(*[Block() for _ in range(6)], nn.Linear(1024, 10)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    seen: list[Any] = []
    with Patches("test") as patches:
        closers = change(model, optimizer, patches)
        for number in range(5):
            if number == 2:
                torch.cuda.reset_peak_memory_stats()
            loss = model(torch.randn(2048, 1024, device="cuda")).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
        peak = torch.cuda.max_memory_allocated()
        seen += [*model.state_dict().values(), optimizer.state_dict()]
        for close in closers:
            close()
    return seen, peak


def plain(model: nn.Sequential, optimizer: Optimizer, patches: Patches) -> list[Callable[[], None]]:
    return []


def blocks_away(model: nn.Sequential, optimizer: Optimizer, patches: Patches) -> list[Callable[[], None]]:
    Offloading([*model[:6]], patches, lambda place, reason: pytest.fail(reason))
    return []


def states_away(model: nn.Sequential, optimizer: Optimizer, patches: Patches) -> list[Callable[[], None]]:
    return [StatesAway(optimizer).close]


def all_away(model: nn.Sequential, optimizer: Optimizer, patches: Patches) -> list[Callable[[], None]]:
    states = StatesAway(optimizer, updates=False)
    used = UsedUp(optimizer, states.around)
    return [used.close, states.close, *blocks_away(model, optimizer, patches)]


@pytest.mark.parametrize(("change", "share"), [(blocks_away, 0.8), (states_away, 0.95), (all_away, 0.7)])
def test_what_is_away_is_equal_and_takes_less(
    change: Callable[[nn.Sequential, Optimizer, Patches], list[Callable[[], None]]], share: float
) -> None:
    expected, before = trained(plain)
    found, after = trained(change)
    assert len(found) == len(expected)
    assert all(map(same, found, expected)), "races between streams would show as other values"
    assert after < share * before


def test_states_lie_in_pinned_memory_between_steps_and_are_loaded_back() -> None:
    model = nn.Linear(512, 512).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    states = StatesAway(optimizer)
    for _ in range(2):
        model(torch.randn(8, 512, device="cuda")).sum().backward()
        optimizer.step()
    moment = optimizer.state[model.weight]["exp_avg"]
    assert moment.device.type == "cpu"
    assert moment.is_pinned()
    shown = optimizer.state_dict()["state"][0]["exp_avg"]
    assert shown.is_cuda
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.state[model.weight]["exp_avg"].device.type == "cpu"
    states.close()
    assert optimizer.state[model.weight]["exp_avg"].is_cuda
    assert torch.equal(optimizer.state[model.weight]["exp_avg"], shown)

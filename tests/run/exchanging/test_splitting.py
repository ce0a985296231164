"""`stoker run --comm auto --comm-allow split`: layers of an unmodified program are split while two real ranks train."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from stoker.cli.exchange.main import main as exchange
from stoker.cli.explain import main as explain
from stoker.records.exchange_file import read_exchanges
from tests.run.exchanging.test_exchanging import TORCHRUN, reported, said, started

pytestmark = pytest.mark.integration
PROGRAMS = Path(__file__).parent / "programs"
PROGRAM, PRICED = str(PROGRAMS / "wide_ranks.py"), str(PROGRAMS / "slow_prices.py")
STEPS = 28


def made() -> nn.Sequential:
    """The program's model."""
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 2048), nn.ReLU(), nn.Linear(2048, 8))


def plainly() -> tuple[list[list[float]], dict[str, torch.Tensor]]:
    """Losses of the program's two ranks, and its weights: gradients are those of the mean of both losses."""
    torch.manual_seed(0)
    model = made()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    randoms = [torch.Generator().manual_seed(rank) for rank in range(2)]
    found: list[list[float]] = [[], []]
    for _ in range(STEPS):
        optimizer.zero_grad()
        for own, random in zip(found, randoms, strict=True):
            x, y = torch.randn(8, 16, generator=random), torch.randint(8, (8,), generator=random)
            loss = nn.functional.cross_entropy(model(x), y)
            (loss / 2).backward()
            own.append(loss.item())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return sorted(found), model.state_dict()


def losses(stdout: str) -> list[list[float]]:
    """Of each rank, in some order."""
    lines = [line.split()[1:] for line in stdout.splitlines() if line.startswith("losses ")]
    return sorted([float(word) for word in line] for line in lines)


def loaded(file: Path) -> dict[str, Any]:
    """What rank 0 saved, in plain torch."""
    found = torch.load(file, weights_only=True)
    model = made()
    model.load_state_dict(found["model"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    optimizer.load_state_dict(found["optimizer"])
    assert torch.allclose(model(torch.ones(2, 16)), found["seen"], atol=1e-5)
    assert all(optimizer.state[each]["exp_avg"].shape == each.shape for each in model.parameters())
    return found["model"]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Small products by one thread, as the ranks make them: on a busy machine threads wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow("two ranks start python and torch")
@pytest.mark.usefixtures("one_thread")
@pytest.mark.timeout(240)
@pytest.mark.parametrize("kept", [True, False], ids=["kept", "taken back"])
def test_an_unmodified_program_is_split_and_loses_nothing(
    kept: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = started(
        tmp_path, "-99" if kept else "99", PROGRAM, str(tmp_path / "split.pt"), str(STEPS), launcher=TORCHRUN,
        program=PRICED, allowed="split", limit_s=220,
    )  # fmt: skip
    expected, weights = plainly()
    for found, each in zip(losses(done.stdout), expected, strict=True):
        assert found == pytest.approx(each, rel=1e-5)
    for name, each in loaded(tmp_path / "split.pt").items():
        assert torch.allclose(each, weights[name], atol=1e-4), name
    (run,) = read_exchanges(tmp_path / "run").replicas
    (split,) = run.splits
    assert (split.layers, split.kept, split.step) == ({"2": "column", "4": "row"}, kept, 14)
    # Activations of the pair, forward and back, and what DDP still sums: the first layer, and the last one's bias.
    expected_bytes = 8 * 8 * (32 + 8) + 4 * (16 * 32 + 32 + 8)
    assert split.predicted_bytes == pytest.approx(expected_bytes, rel=0.01) == split.split_bytes
    assert split.plain_step_s > 0
    assert split.split_step_s > 0
    lines = said(done)
    word = "split layers (`2`, `4`) save" if kept else "layers are whole again (`2`, `4`): a step took"
    assert any(word in line for line in lines), lines
    text = reported(tmp_path, capsys)
    assert "Layers whose weights were split" in text
    assert "`2` by column split, `4` by row split: split from exchange 14 on; a step took" in text
    assert exchange([str(tmp_path / "run")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert ("predicted); kept." if kept else "whole again, a step took") in shown
    assert explain([str(tmp_path / "run")]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert ("layers by column split" if kept else "layers that were split are whole again") in shown

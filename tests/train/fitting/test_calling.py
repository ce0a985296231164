"""`stoker.train.fit`: a model of a running program, traced on its first inputs and changed before they are computed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from stoker.train import fit
from stoker.train.fitting.live_bytes import LiveBytes


def made() -> tuple[nn.Sequential, torch.optim.Optimizer]:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 64)) for _ in range(6)]
    model = nn.Sequential(*blocks)
    return model, torch.optim.AdamW(model.parameters())


def trained(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[list[float], int]:
    torch.manual_seed(1)
    losses: list[float] = []
    with LiveBytes() as live:
        for _ in range(3):
            loss = model(torch.randn(512, 64)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, live.peak


def test_a_model_fits_with_equal_losses(capsys: pytest.CaptureFixture[str]) -> None:
    losses, plain = trained(*made())
    model, optimizer = made()
    budget = int(0.7 * plain)
    fitted = fit(model, optimizer, budget=budget)
    with torch.no_grad():
        model(torch.zeros(1, 64))
    assert fitted.plan is None, "an evaluation is not what it waits for"
    found, peak = trained(model, optimizer)
    assert fitted.plan is not None
    assert fitted.plan.changes
    assert {measure.kind for measure in fitted.plan.measures} == {"recompute"}
    assert found == losses
    assert peak <= 1.03 * budget, "the tracer's own loss is a sum"
    assert "do not fit" in capsys.readouterr().err
    fitted.close()
    assert all(type(part) is nn.Sequential for part in model)


def test_a_budget_must_be_a_size() -> None:
    model, optimizer = made()
    for budget in (0, -5):
        with pytest.raises(ValueError, match="positive size"):
            fit(model, optimizer, budget=budget)
    with pytest.raises(ValueError, match="ambiguous"):
        fit(model, optimizer, budget="20G")

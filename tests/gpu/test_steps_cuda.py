"""Parts of a step on a GPU: waiting for the device is computing, as little as the host has to do with it."""

from __future__ import annotations

import time

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import tests.gpu.serving as serving

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(240)]


@pytest.mark.parametrize(("sleep_s", "reads"), [(0.0, True), (0.02, True), (0.0, False)])
def test_the_rest_of_the_loop_is_what_the_device_does_not_work_in(sleep_s: float, reads: bool) -> None:
    weight = torch.nn.Parameter(torch.randn(4096, 4096, device="cuda"))
    optimizer = torch.optim.SGD([weight], lr=1e-9)
    with serving.served(workers=1) as served:
        served.clock.install()
        for (batch,) in DataLoader(TensorDataset(torch.randn(60 * 8, 4096)), batch_size=8):
            out = weight
            for _ in range(10):
                out = torch.tanh(out @ weight)
            loss = (out.mean() + batch.to("cuda").mean()).square()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if reads:
                loss.item()
            time.sleep(sleep_s)
        served.clock.remove()
        [clock] = served.clock._clocks.values()
    step_s = (clock.compute_s + clock.other_s) / 60
    if sleep_s:
        assert clock.other_s / 60 == pytest.approx(sleep_s, rel=0.15)
    else:
        assert clock.other_s / 60 < 0.15 * step_s

"""Models that are served in turn from one arena, and what is reported of it."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import msgspec
import pytest
import torch
from torch import Tensor, nn

import stoker.train.arena as arenas
import stoker.train.arena.running as running
from stoker.records.arena import ArenaReport


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.compiler.reset()
    gc.collect()
    yield
    torch.compiler.reset()


class Served(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(32, width), nn.GELU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 8)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).softmax(-1)


def test_models_in_turn_take_what_the_largest_takes() -> None:
    models = [Served(width) for width in (64, 128, 256)]
    known = set(running.known())
    calls = arenas.share(models)
    x = torch.randn(64, 32)
    kept: list[tuple[Tensor, Tensor]] = []
    with torch.no_grad():
        for _ in range(4):
            for model, call in zip(models, calls, strict=True):
                kept.append((call(x), model(x)))
    assert all(torch.equal(one, other) for one, other in kept)
    graphs = set(running.known()) - known
    (memory,) = {each.arena for each in graphs}
    sizes = [layout.nbytes for each in graphs for layout in each.layouts()]
    assert len(sizes) == 3
    assert memory.nbytes == max(sizes)
    assert all(each.planned_passes == 2 for each in graphs)


def test_calls_at_once_are_right() -> None:
    model = Served(64)
    (call,) = arenas.share([model])
    batches = [torch.randn(64, 32) for _ in range(60)]
    with torch.no_grad():
        wanted = [model(x) for x in batches]
        for x in batches[:3]:
            call(x)
    wrong: list[int] = []

    def work(part: int) -> None:
        with torch.no_grad():
            wrong.extend(at for at in range(part, 60, 3) if not torch.equal(call(batches[at]), wanted[at]))

    threads = [threading.Thread(target=work, args=(part,)) for part in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong


def test_models_that_are_compiled_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one module"):
        arenas.share([])
    with pytest.raises(ValueError, match="not be compiled yet, got a compiled one at 1"):
        arenas.share([Served(8), torch.compile(Served(8), backend="eager")])


def test_the_report() -> None:
    (call,) = arenas.share([Served(64)])
    with torch.no_grad():
        for _ in range(4):
            call(torch.randn(64, 32))
    found = arenas.report()
    assert found == msgspec.json.decode(msgspec.json.encode(found), type=ArenaReport)
    assert found.plans
    assert found.planned_passes >= 2
    text = found.text()
    assert f"{found.planned_passes} passes in it" in text
    assert "recorded for the plan" in text


def test_an_error_of_planning_leaves_the_graph_to_torch(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def failing(*_: object) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(running, "laid_out", failing)
    model = Served(64)
    (call,) = arenas.share([model])
    x = torch.randn(64, 32)
    with torch.no_grad():
        assert all(torch.equal(call(x), model(x)) for _ in range(4))
    assert capfd.readouterr().err.count("runs in ordinary memory after an error of planning") == 1
    assert any("ZeroDivisionError: planted" in line for line in arenas.report().left)

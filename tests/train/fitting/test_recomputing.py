"""Modules that repeat their forward pass: equal losses and weights, copies and files as without, nothing done twice."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from stoker.core.patching import Patches
from stoker.records.fitting import Keeps
from stoker.train.fitting.live_bytes import LiveBytes
from stoker.train.fitting.recomputing import recompute, why_not


class Block(nn.Module):
    """A residual block that draws numbers and averages over batches."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.inner = nn.Linear(width, 3 * width)
        self.norm = nn.BatchNorm1d(3 * width)
        self.drop = nn.Dropout(0.2)
        self.outer = nn.Linear(3 * width, width)

    def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
        return x + scale * self.outer(self.drop(torch.relu(self.norm(self.inner(x)))))


def net(blocks: int = 3) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[Block() for _ in range(blocks)], nn.Linear(24, 5))


def train(model: nn.Module, steps: int = 4, autocast: bool = False) -> list[float]:
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters())
    losses: list[float] = []
    for _ in range(steps):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = model(torch.randn(16, 24)).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def equal(first: nn.Module, second: nn.Module) -> bool:
    ours, theirs = first.state_dict(), second.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("keeps", ["nothing", "products"])
def test_losses_weights_and_running_averages_are_equal(keeps: Keeps, autocast: bool) -> None:
    plain, model = net(), net()
    losses = train(plain, autocast=autocast)
    with Patches("test") as patches:
        for block in model[:3]:
            recompute(block, keeps, patches)
        assert train(model, autocast=autocast) == losses
        assert equal(model, plain)
    assert type(model[0]) is Block
    assert train(model) == train(plain)


def test_the_naive_way_updates_averages_twice() -> None:
    """What ``spared`` is for: torch's own checkpoint leaves other averages, and no loss tells."""

    class Naive(Block):
        def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
            return checkpoint(super().forward, x, use_reentrant=False)

    plain, model = net(1), net(1)
    model[0].__class__ = Naive
    assert train(model) == train(plain)
    assert not torch.equal(model[0].norm.running_var, plain[0].norm.running_var)


def test_a_copy_computes_with_its_own_weights() -> None:
    model = net(1)
    with Patches("test") as patches:
        recompute(model[0], "nothing", patches)
        average = copy.deepcopy(model)
        assert type(average[0]) is Block
        with torch.no_grad():
            average[0].outer.weight.zero_()
            average[0].outer.bias.zero_()
        x = torch.randn(4, 24)
        average.eval()
        assert torch.equal(average[0](x), x)
        assert type(copy.copy(model[0])) is Block


def test_a_saved_model_loads_where_stoker_is_not(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 2))
    with Patches("test") as patches:
        recompute(model[0], "nothing", patches)
        torch.save(model, tmp_path / "model.pt")
        kept = pickle.dumps(model)
        buffer = io.BytesIO()
        torch.save(model.state_dict(), buffer)
    assert b"stoker" not in kept
    assert equal(pickle.loads(kept), model)
    assert b"stoker" not in (tmp_path / "model.pt").read_bytes()
    assert equal(torch.load(tmp_path / "model.pt", weights_only=False), model)
    with torch.serialization.safe_globals([nn.Sequential, nn.Linear, nn.ReLU, set]):
        assert equal(torch.load(tmp_path / "model.pt", weights_only=True), model)


def test_who_derives_from_its_class_gets_one_that_repeats_too() -> None:
    model = Block(8)
    kept = 4 * 512 * 8 * 4

    def alive() -> int:
        with LiveBytes() as live:
            out = model(torch.randn(512, 8, requires_grad=True))
            found = live.now
        out.sum().backward()
        return found

    assert alive() > kept
    with Patches("test") as patches:
        recompute(model, "nothing", patches)
        kind = model.__class__
        assert kind is Block
        model.__class__ = type("Sharded", (kind,), {"sharded": True})
        assert (model.sharded, alive() < kept) == (True, True)
        model.__class__ = kind
        assert alive() < kept
    assert type(model) is Block


def test_a_class_with_another_forward_is_taken_as_it_is() -> None:
    class Hundredfold(Block):
        def forward(self, x: Tensor, *, scale: float = 1.0) -> Tensor:
            return 100 * super().forward(x, scale=scale)

    model, x = Block(8).eval(), torch.randn(4, 8)
    with Patches("test") as patches:
        recompute(model, "nothing", patches)
        once = model(x)
        model.__class__ = Hundredfold
        assert torch.equal(model(x), 100 * once)


def test_a_parametrization_comes_and_goes() -> None:
    parametrize = nn.utils.parametrize
    module = nn.Linear(4, 4)
    with Patches("test") as patches:
        recompute(module, "nothing", patches)
        kind = type(module)
        parametrize.register_parametrization(module, "weight", nn.Tanh())
        assert torch.equal(module.weight, torch.tanh(module.parametrizations.weight.original))
        parametrize.remove_parametrizations(module, "weight")
        assert type(module) is kind
    assert type(module) is nn.Linear


@pytest.mark.slow("a python that has torch and not stoker")
@pytest.mark.integration
def test_it_loads_in_a_python_without_stoker(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 2))
    with Patches("test") as patches:
        recompute(model[0], "products", patches)
        torch.save(model, tmp_path / "model.pt")
    code = (
        "import sys; sys.modules['stoker'] = None; import torch; "
        f"print(type(torch.load({str(tmp_path / 'model.pt')!r}, weights_only=False)[0]).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout.strip() == "Sequential"


def test_nothing_is_repeated_without_gradients() -> None:
    calls = 0

    class Counted(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            return super().forward(input).relu().square()

    module = Counted(3, 3)
    with Patches("test") as patches:
        recompute(module, "nothing", patches)
        with torch.no_grad():
            module(torch.ones(1, 3))
        assert calls == 1
        module(torch.ones(1, 3)).sum().backward()
        assert calls == 3, "once ahead, once again"


def test_named_arguments_reach_the_module_whatever_their_names() -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor, *, use_reentrant: Tensor, context_fn: int) -> dict[str, Any]:
            return {"out": (x * use_reentrant).tanh(), "kept": context_fn}

    module = Odd()
    x, y = torch.ones(3, requires_grad=True), torch.full((3,), 2.0, requires_grad=True)
    with Patches("test") as patches:
        recompute(module, "nothing", patches)
        found = module(x, use_reentrant=y, context_fn=7)
        assert found["kept"] == 7
        found["out"].sum().backward()
    assert x.grad is not None
    assert y.grad is not None
    assert torch.equal(2 * y.grad, x.grad)


def test_less_is_alive() -> None:
    def peak(keeps: Keeps | None) -> int:
        torch.manual_seed(0)
        model = nn.Sequential(*[Block(64) for _ in range(6)])
        with Patches("test") as patches:
            for block in model if keeps else ():
                recompute(block, keeps or "nothing", patches)
            with LiveBytes() as live:
                model(torch.randn(256, 64)).sum().backward()
        return live.peak

    plain, products, nothing = peak(None), peak("products"), peak("nothing")
    assert nothing < products < plain
    assert nothing < 0.5 * plain


def test_what_cannot_be_repeated_unseen_is_refused() -> None:
    hooked = nn.Sequential(nn.Linear(2, 2))
    hooked[0].register_forward_hook(lambda *_: None)
    replaced = nn.Linear(2, 2)
    replaced.forward = nn.Identity().forward  # type: ignore[method-assign]

    class Own(nn.Linear):
        def __deepcopy__(self, memo: Any) -> Own:
            return self

    for module, word in ((hooked, "hooks"), (replaced, "replaced"), (Own(2, 2), "own way")):
        assert word in why_not(module)
        with Patches("test") as patches, pytest.raises(ValueError, match=word):
            recompute(module, "nothing", patches)
    assert why_not(nn.Linear(2, 2)) == ""

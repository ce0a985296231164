"""Gradients that are used up: when one is applied, what is gone by then, and peaks of the same step carried out."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec.structs
import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from stoker.perf.catalogue import gpu
from stoker.perf.features.lifetimes import BufferLife, CallInTime, MemoryTimeline, Scratch
from stoker.perf.features.step import trace
from stoker.perf.memory.choice.offloading import HostLink
from stoker.perf.memory.choice.options import Options, used_up, with_options
from stoker.perf.memory.kernel_memory import on_gpu
from stoker.perf.memory.timeline import live_bytes, step_peak
from stoker.train.fitting.live_bytes import LiveBytes
from stoker.train.fitting.optimizing import UsedUp

WIDTH = 32


def call(at: int, phase: str, name: str = "mm") -> CallInTime:
    return CallInTime(at, name, "matmul", phase, "", 1.0)  # pyright: ignore[reportArgumentType]


def life(size: int, birth: int, death: int, category: str, phase: str, *uses: int) -> BufferLife:
    return BufferLife(size, birth, death, -1, category, phase, "", "", uses)  # pyright: ignore[reportArgumentType]


def one_layer(*, added_at: int = 0) -> MemoryTimeline:
    """A layer whose backward pass makes a gradient of 100 while 1,000 that it saved are alive, then the one before it.

    Args:
        added_at: event before which another part of the backward pass adds to the gradient; 0 for none.
    """
    uses = (0, 1) if added_at else (0,)
    buffers = (
        life(100, 0, 20, "parameters", "forward"),
        life(1000, 2, 6, "activations", "forward", 0),
        life(100, 5, 20, "gradients", "backward", *uses),
        # 6: what was saved is freed
        life(50, 7, 9, "temporaries", "backward", 1),
        life(10, 10, 12, "temporaries", "backward"),
        life(200, 14, 15, "temporaries", "optimizer"),
    )
    calls = (call(5, "backward"), call(added_at or 7, "backward", "add_"), call(14, "optimizer", "addcdiv_"))
    return MemoryTimeline(
        name="layer", target="cpu", batch_size=1, begin=1, end=20, buffers=buffers, calls=calls
    )  # fmt: skip


def test_an_update_comes_after_what_the_backward_pass_of_its_layer_has_read_is_gone() -> None:
    changed, _ = used_up(one_layer())
    live = live_bytes(changed).tolist()
    assert live[5] == 100 + 1000 + 100, "the gradient alone, while what it is computed from is alive"
    assert live[6] == 100 + 100 + 200, "its update, which takes twice as much as a parameter has"
    assert live[7] == 100 + 50, "it is gone before the next part of the backward pass"
    assert live[14] == 100, "and the optimizer's own step finds nothing to do"


def test_an_update_comes_after_the_kernel_of_its_gradient() -> None:
    plain = msgspec.structs.replace(one_layer(), target="cuda", scratch=(Scratch(6, 5000, "backward", "", ""),))
    changed, _ = used_up(on_gpu(plain, gpu("H100-SXM")))
    live = live_bytes(changed).tolist()
    # One event more for the workspace, one more for its end.
    assert live[6] == 100 + 1000 + 100 + 5000, "the gradient is there while its kernel runs"
    assert live[8] == 100 + 100 + 200, "its update, when what the kernel has read is gone"
    assert live[9] == 100 + 50


def test_a_gradient_that_is_added_to_is_applied_when_it_is_complete() -> None:
    changed, _ = used_up(one_layer(added_at=10))
    live = live_bytes(changed).tolist()
    assert live[7] == 100 + 100 + 50
    assert live[9] == 100 + 100 + 200, "right before the next part, which begins with event 10"
    assert live[10] == 100 + 10


def test_a_gradient_that_the_program_keeps_and_zeroes_is_gone_with_the_step_before() -> None:
    """As with ``zero_grad(set_to_none=False)``: the backward pass adds to what the step before has made."""
    buffers = (
        life(300, 0, 20, "parameters", "forward"),
        life(300, 1, 20, "gradients", "backward", 0, 2),
        life(500, 5, 9, "activations", "forward", 1, 2),
        life(300, 7, 8, "temporaries", "backward", 2),
        life(10, 10, 12, "temporaries", "backward"),
        life(150, 14, 15, "temporaries", "optimizer"),
    )
    calls = (call(4, "forward", "zero_"), call(5, "forward"), call(8, "backward", "add_"))
    timeline = MemoryTimeline(
        name="layer", target="cpu", batch_size=1, begin=4, end=20, buffers=buffers, calls=calls
    )  # fmt: skip
    changed, _ = used_up(timeline)
    live = live_bytes(changed).tolist()
    assert live[5] == 300 + 500
    assert live[7] == 300 + 500 + 300
    assert live[9] == 300 + 300 + 150, "the update by what was to be added"
    assert live[19] == 300


def test_states_that_are_away_come_for_the_update() -> None:
    plain = one_layer()
    states = life(300_000, 0, 20, "optimizer", "optimizer")
    timeline = MemoryTimeline(
        name="layer", target="cpu", batch_size=1, begin=1, end=20, buffers=(states, *plain.buffers), calls=plain.calls
    )
    both = Options(used_up=True, states_away=True)
    changed, _ = with_options(timeline, both, HostLink(1e9, overlaps=False))
    live = live_bytes(changed).tolist()
    assert live[5] == 100 + 1000 + 100
    assert live[6] == 100 + 100 + 200 + 300_000


class Block(nn.Module):
    """A block whose widest product is the input of its last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.between = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(self.between(torch.tanh(self.first(x))), self.first.weight)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "blocks": lambda: nn.Sequential(*[Block() for _ in range(4)]),
    "layers": lambda: nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(6)]),
    "tied": Tied,
}


class Zeroing(torch.optim.AdamW):
    """What a program steps that calls ``zero_grad(set_to_none=False)``."""

    def zero_grad(self, set_to_none: bool = False) -> None:
        super().zero_grad(set_to_none)


def traced(name: str, samples: int, *, uses_up: bool, zeroes: bool = False) -> MemoryTimeline:
    def make(parameters: Iterable[Tensor]) -> Optimizer:
        optimizer = (Zeroing if zeroes else torch.optim.AdamW)(parameters)
        if uses_up:
            UsedUp(optimizer)
        return optimizer

    return trace(MODELS[name](), torch.empty(samples, WIDTH), optimizer=make, target="cpu")[1]


def counted(name: str, samples: int) -> int:
    """The counted peak of the second step of the same module."""
    model, x = MODELS[name](), torch.randn(samples, WIDTH)
    optimizer = torch.optim.AdamW(model.parameters())
    used = UsedUp(optimizer)
    with LiveBytes([x, *model.parameters()]) as live:
        for _ in range(2):
            live.begin()
            model(x).sum().backward()
            optimizer.step()
    used.close()
    return live.peak


@pytest.mark.parametrize("samples", [16, 48, 64])
@pytest.mark.parametrize("name", MODELS)
def test_the_peak_is_that_of_the_trace_and_of_the_count(name: str, samples: int) -> None:
    changed, _ = with_options(traced(name, samples, uses_up=False), Options(used_up=True))
    found = step_peak(changed).bytes
    assert found == pytest.approx(step_peak(traced(name, samples, uses_up=True)).bytes, rel=0.01)
    assert found == pytest.approx(counted(name, samples), rel=0.01)


@pytest.mark.parametrize("name", MODELS)
def test_the_peak_is_the_same_where_gradients_are_zeroed(name: str) -> None:
    plain = traced(name, 48, uses_up=False, zeroes=True)
    assert step_peak(plain).bytes > step_peak(traced(name, 48, uses_up=False)).bytes, "they live in the forward pass"
    changed, _ = with_options(plain, Options(used_up=True))
    assert step_peak(changed).bytes == pytest.approx(counted(name, 48), rel=0.01)

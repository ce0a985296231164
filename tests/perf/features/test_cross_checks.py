"""Features against other counts of the same step: torch's own of FLOPs, a real run's of bytes, weights without data."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from stoker.perf import characterise
from stoker.perf.features.records import StepFeatures
from stoker.train.fitting.live_bytes import peak_of_step


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


class Attends(nn.Module):
    """A projection to queries, keys and values; fused attention."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.mixed(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        found = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return x + self.out(found.transpose(1, 2).flatten(2))


class First(nn.Module):
    """What the first result of a module is."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x)[0]


def counted(module: nn.Module, x: Tensor) -> int:
    """FLOPs of forward and backward pass as torch counts them in a real run."""
    with FlopCounterMode(display=False) as counter:
        module(x).sum().backward()
    return counter.get_total_flops()


# What torch's counter gets wrong, and the same by hand.


def test_torch_counts_no_flops_of_attention_on_the_cpu_before_2_15() -> None:
    module, x = Attends(32, 4, causal=False), torch.randn(2, 8, 32)
    linear = 3 * 2 * 2 * 8 * 32 * (96 + 32)  # forward, gradients of weights and of inputs
    forward = 2 * 2 * 2 * 8 * 8 * 32  # two products: samples x queries x keys x width
    attention = forward * (1 + 2.5)
    seen = attention if torch.ops.aten._scaled_dot_product_flash_attention_for_cpu in flop_registry else 0
    assert counted(module, x) == linear - 2 * 2 * 8 * 32 * 96 + seen  # the input wants no gradient
    found = characterise(module, x, target="cpu")
    assert sum(o.flops for o in found.operations if o.kind == "attention") == attention


def test_torch_counts_no_flops_of_an_lstm() -> None:
    module, x = nn.LSTM(16, 24), torch.randn(5, 3, 16)
    assert counted(First(module), x) == 0
    forward = 5 * 3 * (2 * 4 * 24 * (16 + 24) + 10 * 24)
    for target in ("cpu", "cuda"):
        found = characterise(First(module), x, target=target)
        assert found.matrix_flops("forward") == forward
        assert found.matrix_flops("backward") == 2 * forward


def test_torch_counts_grouped_convolutions_backward_as_if_they_were_whole() -> None:
    """Each gradient has the multiplications of the forward pass, which has one group's channels at a time."""
    module, x = nn.Conv2d(32, 32, 3, padding=1, groups=32, bias=False), torch.randn(2, 32, 8, 8, requires_grad=True)
    forward = 2 * 2 * 32 * 8 * 8 * 9
    with FlopCounterMode(display=False) as forwards:
        module(x)
    assert forwards.get_total_flops() == forward
    assert counted(module, x) - forward > 10 * 2 * forward
    found = characterise(nn.Sequential(nn.Conv2d(4, 32, 1), module), torch.empty(2, 4, 8, 8))
    grouped = [o for o in found.operations if o.kind == "conv" and o.dims[3] == 32]
    assert {o.phase: o.flops for o in grouped} == {"forward": forward, "backward": 2 * forward}


# Weights without data, and with.

MODULES: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "convolutions": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 4)),
        lambda: torch.randn(2, 3, 8, 8),
    ),
    "attention": (lambda: Attends(16, 2, causal=True), lambda: torch.randn(2, 6, 16)),
    "encoder": (
        lambda: nn.TransformerEncoderLayer(16, 2, 32, batch_first=True),
        lambda: torch.randn(2, 6, 16),
    ),
    "lstm": (lambda: First(nn.LSTM(8, 8, 2, bidirectional=True, dropout=0.1)), lambda: torch.randn(5, 2, 8)),
    "cell": (lambda: First(nn.LSTMCell(8, 8)), lambda: torch.randn(5, 8)),
    "lookups": (
        lambda: nn.Sequential(nn.EmbeddingBag(50, 8, mode="mean"), nn.Linear(8, 2)),
        lambda: torch.arange(12).view(4, 3),
    ),
}


@pytest.mark.parametrize("target", ["cuda", "cpu"])
@pytest.mark.parametrize("name", MODULES)
def test_weights_on_meta_make_no_difference(name: str, target: Any) -> None:
    make, inputs = MODULES[name]
    with torch.device("meta"):
        empty = make()
    found = [characterise(module, inputs(), optimizer=momentum, target=target, name="m") for module in (empty, make())]
    assert found[0] == found[1]
    assert not found[0].unknown


# A real run.


Maker = Callable[[int, int, bool], list[nn.Module]]
"""Layers from a width to itself or to another, and a choice."""

ANYWHERE: dict[str, Maker] = {
    "smooth": lambda width, _, yes: [nn.GELU() if yes else nn.SiLU()],
    "plain": lambda width, _, yes: [nn.Tanh() if yes else nn.Sigmoid()],
    "inplace": lambda width, _, yes: [nn.Softplus(), nn.ReLU(inplace=yes)],
    "dropout": lambda width, _, yes: [nn.Dropout(0.3 if yes else 0.0)],
}
ROWS: dict[str, Maker] = {
    **ANYWHERE,
    "linear to": lambda width, wide, yes: [nn.Linear(width, wide, bias=yes)],
    "norm": lambda width, _, yes: [nn.LayerNorm(width), nn.Softmax(-1)],
}
LAYERS: dict[str, dict[str, Maker]] = {
    "image": {
        **ANYWHERE,
        "conv to": lambda width, wide, yes: [nn.Conv2d(width, wide, 3, 2 if yes else 1, 1)],
        "grouped to": lambda width, wide, yes: [nn.Conv2d(width, wide, 3, padding=1, groups=2, bias=yes)],
        "norm": lambda width, _, yes: [nn.BatchNorm2d(width)],
        "pool": lambda width, _, yes: [nn.MaxPool2d(3, 1, 1) if yes else nn.AvgPool2d(3, 1, 1)],
    },
    "sequence": {
        **ROWS,
        "attention": lambda width, _, yes: [Attends(width, 2, yes)],
        "lstm to": lambda width, wide, yes: [First(nn.LSTM(width, wide, batch_first=yes))],
        "gru to": lambda width, wide, yes: [First(nn.GRU(width, wide, batch_first=yes))],
    },
    "row": ROWS,
}


@st.composite
def networks(draw: st.DrawFn) -> tuple[nn.Module, Tensor]:
    """Layers drawn one after another, each taking what the one before gives: images, sequences or rows."""
    batch, width = draw(st.integers(1, 5)), draw(st.sampled_from([4, 8, 24]))
    kind = draw(st.sampled_from(sorted(LAYERS)))
    shape = {"image": (batch, width, 8, 8), "sequence": (batch, 6, width), "row": (batch, width)}[kind]
    layers: list[nn.Module] = []
    for _ in range(draw(st.integers(1, 5))):
        name, wide = draw(st.sampled_from(sorted(LAYERS[kind]))), draw(st.sampled_from([8, 16, 40]))
        layers += LAYERS[kind][name](width, wide, draw(st.booleans()))
        width = wide if name.endswith(" to") else width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(_outputs(layers, shape), 3)), torch.randn(shape)


def _outputs(layers: list[nn.Module], inputs: tuple[int, ...]) -> int:
    with torch.no_grad():
        return nn.Sequential(*layers)(torch.zeros(inputs)).flatten(1).shape[1]


@given(network=networks(), name=st.sampled_from(["SGD", "AdamW", "Adagrad", "RMSprop"]))
@settings(max_examples=25, deadline=None)
def test_the_peak_is_that_of_a_real_run_on_the_cpu(network: tuple[nn.Module, Tensor], name: str) -> None:
    module, x = network
    make = getattr(torch.optim, name)
    found = characterise(module, x, optimizer=make, target="cpu")
    real = peak_of_step(module, make(module.parameters()), x, lambda: module(x).sum())
    assert found.peak_bytes == pytest.approx(real, rel=0.01, abs=256)
    assert found.activation_peak_bytes <= found.peak_bytes
    assert not found.unknown


@given(network=networks())
@settings(max_examples=15, deadline=None)
def test_flops_are_those_of_a_real_run_where_torch_counts_them(network: tuple[nn.Module, Tensor]) -> None:
    module, x = network
    found = characterise(module, x, target="cpu")
    ours = sum(o.flops for o in found.operations if o.kind == "matmul")
    forward = sum(o.flops for o in found.operations if o.kind == "conv" and o.phase == "forward")
    with FlopCounterMode(display=False) as counter:
        module(x).sum().backward()
    theirs = counter.get_flop_counts()["Global"]
    assert ours == sum(theirs.get(op, 0) for op in _PRODUCTS)
    assert forward == theirs.get(torch.ops.aten.convolution, 0)


_PRODUCTS = [torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm, torch.ops.aten.baddbmm]


def test_kernels_are_as_many_as_a_real_run_calls() -> None:
    """For the CPU: each operation that touches data, views and allocations aside."""
    from torch.utils._python_dispatch import TorchDispatchMode

    calls: list[str] = []

    class Listed(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            calls.append(str(func._schema.name).rpartition("::")[2].rstrip("_"))
            return func(*args, **(kwargs or {}))

    module, x = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 2)), torch.randn(3, 8)
    found: StepFeatures = characterise(module, x, target="cpu")
    with Listed():
        module(x).sum().backward()
    views = {"t", "detach", "expand", "view", "empty_like"}
    expected = sorted(name for name in calls if name not in views)
    assert sorted(o.name for o in found.operations for _ in range(o.count)) == expected

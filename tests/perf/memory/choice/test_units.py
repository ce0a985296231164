"""When the first forward pass of a repeated unit is done with what it makes, and peaks of blocks with dropout."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from stoker.core.patching import Patches
from stoker.perf.catalogue import gpu
from stoker.perf.communication.times import PassTimes
from stoker.perf.features.lifetimes import BufferLife, CallInTime, MemoryTimeline, Scratch
from stoker.perf.features.step import trace
from stoker.perf.memory.choice.unit_costs import parts_of
from stoker.perf.memory.choice.units import call_ends, first_end, nested_units, repeated
from stoker.perf.memory.kernel_memory import on_gpu
from stoker.perf.memory.timeline import live_bytes, step_peak, with_lives, with_seconds
from stoker.records.fitting import Keeps
from stoker.train.fitting.live_bytes import LiveBytes
from stoker.train.fitting.recomputing import recompute

WIDTH, SAMPLES, BLOCKS = 32, 128, 4
OLD = 800 * WIDTH * WIDTH
"""Bytes that the program drops after the forward pass, such as gradients of the step before: the peak is in it."""


class Block(nn.Module):
    """A block that ends with dropout, as those of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(WIDTH), nn.Dropout(0.1)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.drop(self.mlp(self.norm(x)))


def net(chosen: dict[str, Keeps], patches: Patches) -> nn.Module:
    model = nn.Sequential(*[Block() for _ in range(BLOCKS)])
    for path, keeps in chosen.items():
        recompute(model.get_submodule(path), keeps, patches)
    return model


def traced(chosen: dict[str, Keeps]) -> MemoryTimeline:
    with Patches("test") as patches:
        model = net(chosen, patches)
        features, timeline = trace(lambda x: model(x).sum().backward(), torch.empty(SAMPLES, WIDTH), target="cpu")
    (loss,) = (call.at for call in timeline.calls if call.phase == "forward" and call.name == "sum")
    timeline = with_lives(timeline, [BufferLife(OLD, 0, loss + 1, -1, "gradients", "backward", "", "")])
    return with_seconds(timeline, features, PassTimes.shared(features, 1.0, 2.0, 0.1))


def counted(chosen: dict[str, Keeps]) -> int:
    """The counted peak of the same step."""
    with Patches("test") as patches:
        model, x, old = net(chosen, patches), torch.randn(SAMPLES, WIDTH), torch.zeros(OLD // 4)
        with LiveBytes([x, old, *model.parameters()]) as live:
            loss = model(x).sum()
            del old
            loss.backward()
    return live.peak


PLAIN = traced({})
UNITS = {unit.path: unit for unit in nested_units(PLAIN)}


def made_by(module: str) -> int:
    """The widest buffer that a module of the last block makes."""
    (one,) = UNITS["3"].passes
    places = (place for place in one.made if PLAIN.buffers[place].module == module)
    return max(places, key=lambda place: PLAIN.buffers[place].bytes)


def end_of(module: str) -> int:
    """Event by which that is gone from a first pass that saves nothing."""
    return first_end(PLAIN, UNITS["3"].passes[0], made_by(module), call_ends(PLAIN))


def birth_of(module: str) -> int:
    return PLAIN.buffers[made_by(module)].birth


def test_what_a_first_pass_makes_is_gone_with_its_last_reader() -> None:
    assert end_of("3.mlp.0") == birth_of("3.mlp.2"), "the wide product, when there is its activation"
    assert birth_of("3.mlp.2") < end_of("3.mlp.1") <= birth_of("3.drop")
    assert all(end_of(f"3.{name}") < PLAIN.buffers[made_by(f"3.{name}")].death for name in ("mlp.0", "mlp.1", "drop"))


def test_an_argument_of_a_module_lives_until_it_returns() -> None:
    """The first layer of the MLP alone reads what the norm made, and the call of the MLP still holds it."""
    assert end_of("3.norm") > birth_of("3.mlp.2")


CHOICES: list[dict[str, Keeps]] = [
    {"3": "nothing"}, {str(place): "nothing" for place in range(BLOCKS)}, {"3": "products"}, {"1": "nothing"},
    {"0": "nothing", "3": "products"},
]  # fmt: skip


@pytest.mark.parametrize("chosen", CHOICES)
def test_the_peak_is_that_of_the_trace_and_of_the_count(chosen: dict[str, Keeps]) -> None:
    changed, _ = repeated(PLAIN, [(UNITS[path], keeps) for path, keeps in chosen.items()])
    found = step_peak(changed).bytes
    assert found == pytest.approx(step_peak(traced(chosen)).bytes, rel=0.01)
    assert found == pytest.approx(counted(chosen), rel=0.01)


def test_a_choice_knows_that_a_unit_needs_less_while_it_saves_nothing() -> None:
    last = parts_of(PLAIN, nested_units(PLAIN))[-2]
    assert last.name == "3"
    (way,) = (each for each in last.repeats if each.keeps == "nothing")
    assert way.need < last.need, "the peak is in its forward pass, where a repeated one frees as it goes"
    assert way.need == pytest.approx(step_peak(repeated(PLAIN, [(UNITS["3"], "nothing")])[0]).bytes, rel=0.01)


def convolving(*, num_late_outputs: int) -> MemoryTimeline:
    """relu, conv and relu on 1,000 bytes each, the second with a workspace of 5,000 and two results; and the way back.

    Args:
        num_late_outputs: results of the convolution that are allocated while it has its workspace.
    """

    def life(size: int, birth: int, death: int, *uses: int) -> BufferLife:
        return BufferLife(size, birth, death, uses[-1], "activations", "forward", "unit", "", uses)

    lives = (
        BufferLife(10, 0, 20, 1, "inputs", "forward", "", "", (0,)),
        life(1000, 1, 16, 0, 1, 5, 6), life(1000, 2, 5, 1, 2), life(0, 3, 17, 1, 5), life(1000, 4, 12, 2, 4),
    )  # fmt: skip
    calls = [
        CallInTime(at, name, "pointwise", phase, module, 1.0)  # pyright: ignore[reportArgumentType]
        for at, name, phase, module in (
            (1, "relu", "forward", "unit"), (2, "convolution", "forward", "unit"), (4, "relu", "forward", "unit"),
            (6, "sum", "forward", ""), (10, "threshold_backward", "backward", "unit"),
            (12, "convolution_backward", "backward", "unit"), (14, "threshold_backward", "backward", "unit"),
        )
    ]  # fmt: skip
    plain = MemoryTimeline(
        name="t", target="cuda", batch_size=1, begin=1, end=20, buffers=lives, calls=tuple(calls),
        scratch=(Scratch(4, 5000, "forward", "unit", "", num_late_outputs),),
    )  # fmt: skip
    return on_gpu(plain, gpu("H100-SXM"))


@pytest.mark.parametrize("num_late_outputs", [0, 1])
def test_what_a_kernel_reads_is_alive_while_it_has_its_workspace(num_late_outputs: int) -> None:
    timeline = convolving(num_late_outputs=num_late_outputs)
    units = nested_units(timeline)
    changed, _ = repeated(timeline, [(units[0], "nothing")])
    first = live_bytes(changed)[: units[0].passes[0].backward[0]]
    assert max(first) == 10 + 2 * 1000 + 5000, "the convolution's input and result next to its workspace"

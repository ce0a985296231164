"""Programs that update their weights themselves: their updates are steps, and those of other programs are not."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from stoker.core.errors import TracingError
from stoker.perf.features.lifetimes import MemoryTimeline
from stoker.perf.features.program import trace_program
from stoker.perf.features.records import Operation, StepFeatures
from stoker.perf.memory.timeline import by_category, step_peak
from stoker.records.fitting import CountedPeak
from stoker.train.fitting.counting import StepCount

pytestmark = [
    pytest.mark.integration, pytest.mark.usefixtures("warm_pythons"),
    pytest.mark.slow("traces programs in processes that load torch"),
]  # fmt: skip

NOTE = "the program updates its weights itself, and its updates were taken as its steps"
START = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
x, y = torch.randn(64, 64), torch.randint(8, (64,))
"""
TRAINING = (
    START
    + """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False) if OPTIMIZER else None
for _ in range(4):
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    UPDATE
    model.zero_grad()
    print(loss.item())
"""
)
UPDATES = {
    "data": "for p in model.parameters(): p.data.add_(p.grad, alpha=-0.1)",
    "no_grad": """
    with torch.no_grad():
        for p in model.parameters(): p -= 0.1 * p.grad""",
    "copy": """
    with torch.no_grad():
        for p in model.parameters(): p.copy_(p - 0.1 * p.grad)""",
    "assigned": "for p in model.parameters(): p.data = p.data - 0.1 * p.grad",
    "foreach": """
    with torch.no_grad():
        torch._foreach_add_(list(model.parameters()), [p.grad for p in model.parameters()], alpha=-0.1)""",
    "out": """
    with torch.no_grad():
        for p in model.parameters(): torch.sub(p, p.grad, alpha=0.1, out=p)""",
}
MOMENTUM = (
    START
    + """
velocity = {}
for _ in range(4):
    nn.functional.cross_entropy(model(x), y).backward()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name not in velocity:
                velocity[name] = torch.zeros_like(p)
            velocity[name].mul_(0.9).add_(p.grad)
            p -= 0.1 * velocity[name]
    model.zero_grad()
"""
)
CONTROLLED = (
    START
    + """
best, rate, steps = float("inf"), 0.5, 0
while best > 0.01 and steps < 4:
    loss = nn.functional.cross_entropy(model(x), y)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    if loss.item() > best:
        rate /= 2
    best, steps = min(best, loss.item()), steps + 1
    with torch.no_grad():
        for p, gradient in zip(model.parameters(), gradients):
            p.sub_(rate * gradient)
"""
)
IN_TURN = """
import torch
from torch import nn
makes, judges = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 64)), nn.Linear(64, 1)
def update(model):
    for p in model.parameters():
        p.data.sub_(p.grad, alpha=0.1)
    makes.zero_grad()
    judges.zero_grad()
for _ in range(4):
    judges(makes(torch.randn(16, 8)).detach()).mean().backward()
    update(judges)
    judges(makes(torch.randn(16, 8))).mean().backward()
    update(makes)
"""
OTHER_WRITES = (
    START
    + """
average = [p.detach().clone() for p in model.parameters()]
target = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
nn.functional.cross_entropy(model(x), y).backward()  # gradients to scale the weights by, before there is an optimizer
with torch.no_grad():
    for p in model.parameters(): p.mul_(0.5)
model.zero_grad()
model(x)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for _ in range(3):
    target(x)
    nn.functional.cross_entropy(model(x), y).backward()
    for p in model.parameters(): p.data.clamp_(-0.1, 0.1)
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        for a, t, p in zip(average, target.parameters(), model.parameters()):
            a.lerp_(p, 0.1)
            t.lerp_(p, 0.1)
"""
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def training(update: str) -> str:
    made = TRAINING.replace("OPTIMIZER", str(update == "optimizer"))
    return made.replace("UPDATE", "optimizer.step()" if update == "optimizer" else UPDATES[update])


def traced(folder: Path, source: str) -> tuple[StepFeatures, MemoryTimeline]:
    (folder / "train.py").write_text(source)
    return trace_program(["train.py"], target="cpu")


def of(features: StepFeatures, phase: str) -> list[Operation]:
    return [each for each in features.operations if each.phase == phase]


def counted(folder: Path) -> list[CountedPeak]:
    """Peaks of the program's steps, counted in a real run from its first forward pass on."""
    count = StepCount(3, lambda: False, lambda: None, passes_by_hand=1)
    source = (
        (folder / "train.py").read_text().replace("\nfor _", "\nbegin()\nfor _").replace("\nwhile", "\nbegin()\nwhile")
    )
    (folder / "counted.py").write_text(source)
    try:
        runpy.run_path(str(folder / "counted.py"), init_globals={"begin": count.start})
    finally:
        count.stop()
    return count.peaks


def test_an_update_by_hand_is_a_step_as_that_of_an_optimizer(folder: Path) -> None:
    """The same kernels in the same phases, the same memory: only the sentence of what was assumed is new."""
    ours, memory = traced(folder, training("data"))
    theirs, expected = traced(folder, training("optimizer"))
    assert of(ours, "optimizer")
    assert of(ours, "forward") == of(theirs, "forward")
    assert of(ours, "backward") == of(theirs, "backward")
    assert [(each.name, each.count, each.eager_bytes) for each in of(ours, "optimizer")] == [
        (each.name, each.count, each.eager_bytes) for each in of(theirs, "optimizer")
    ]
    assert (ours.weights, ours.peak_bytes, ours.activation_peak_bytes, ours.batch_size) == (
        theirs.weights, theirs.peak_bytes, theirs.activation_peak_bytes, theirs.batch_size,
    )  # fmt: skip
    assert NOTE in ours.assumptions
    assert NOTE not in theirs.assumptions
    peak, other = step_peak(memory), step_peak(expected)
    assert by_category(memory, peak) == by_category(expected, other)


@pytest.mark.parametrize("update", UPDATES)
def test_weights_are_written_in_any_way(folder: Path, update: str) -> None:
    """What clips is in the forward phase, as before an optimizer's step; the counted peak is the predicted one."""
    found, timeline = traced(folder, training(update))
    assert not [each.name for each in of(found, "optimizer") if "norm" in each.name]
    assert any("norm" in each.name for each in of(found, "forward"))
    assert {each.kind for each in of(found, "optimizer")} <= {"pointwise", "copy"}
    weights = sum(
        one.bytes
        for one in timeline.buffers
        if one.category == "parameters" and one.birth < timeline.begin <= one.death
    )
    assert weights == found.weights.bytes == 4 * (64 * 256 + 256 + 256 * 8 + 8)
    assert step_peak(timeline).bytes == counted(folder)[1].bytes


@pytest.mark.parametrize(("source", "states"), [(MOMENTUM, 1), (CONTROLLED, 0)], ids=["momentum", "controlled"])
def test_what_updates_keep_is_their_state(folder: Path, source: str, states: int) -> None:
    found, timeline = traced(folder, source)
    assert found.weights.optimizer_bytes == states * found.weights.bytes
    held = by_category(timeline, peak := step_peak(timeline))
    assert held.get("optimizer", 0) == states * found.weights.bytes
    older = 0 if states else found.weights.bytes  # which a variable holds until it gets the new ones
    assert held["gradients"] == 4 * (256 * 8 + 8) + older, "the peak is where those of the last layer are there"
    peaks = [each.bytes for each in counted(folder)]
    assert peak.bytes == peaks[1] == peaks[2]


def test_networks_that_are_updated_in_turn(folder: Path) -> None:
    """A step goes from one update of the first network to its next, the other's in between."""
    found, _ = traced(folder, IN_TURN)
    maker, judge = 8 * 32 + 32 * 64, 64
    assert found.matrix_flops("forward") == 2 * 16 * (2 * maker + 2 * judge)
    assert sum(each.count for each in of(found, "optimizer")) == 4 + 2


def test_other_writes_of_weights_are_no_steps_where_there_is_an_optimizer(folder: Path) -> None:
    """Clamped weights, averages and a target network; and an update from before the optimizer was made."""
    found, _ = traced(folder, OTHER_WRITES)
    assert NOTE not in found.assumptions
    products = 64 * 256 + 256 * 8
    assert found.matrix_flops("forward") == 2 * 2 * 64 * products, "the model's pass and its target's"
    assert found.weights.optimizer_bytes == 4 * (products + 256 + 8)
    names = {each.name for each in of(found, "optimizer")}
    assert names
    assert not names & {"clamp", "lerp"}
    assert {"clamp", "lerp"} <= {each.name for each in of(found, "forward")}


def test_a_program_without_steps_is_told_what_was_seen(folder: Path) -> None:
    weights = "import torch\nw = torch.randn(8, requires_grad=True)\nfor _ in range(3): (w * 2).sum().backward()\n"
    with pytest.raises(
        TracingError,
        match=r"ended without an optimizer step; seen: 3 backward passes, no optimizer, 0 updates of a "
        r"module's weights by the program itself. A step can be named in place of the script, as module:function",
    ):
        traced(folder, weights)
    once = training("data").replace("range(4)", "range(1)") + "\nraise ValueError('later')"
    with pytest.raises(TracingError, match=r"ended with status 1 .*; seen: 1 backward pass, .* 1 update of a module"):
        traced(folder, once)

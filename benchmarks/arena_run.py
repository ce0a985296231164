"""Steps compiled with the backend `stoker.arena` against `aot_eager`: equal losses, time, and what lies in the arena.

Bytes are counted over the calls of the compiled graphs: activations and temporaries when most are alive, without
parameters, inputs and gradients. Times are those of whole training steps in alternation, one thread.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from benchmarks.programs.cpu_models import OTHERS, SIX, Trained
from benchmarks.support.harness import Bar, Options, Report, alternate, no_collections, ratios, run
from stoker.core.units import format_bytes
from stoker.records.arena import ArenaPlan
from stoker.train.arena import share
from stoker.train.arena.running import Graphs, known

BAR = Bar(
    "arena_run",
    "six models compiled into a planned arena: losses bit-equal to aot_eager, no slower, most bytes inside",
    headline=("different", "time", "inside_attention", "inside_mlp", "shared"),
)
BACKENDS = ("aot_eager", "stoker.arena")
MODELS = {
    name: (SIX | OTHERS)[name] for name in ("mlp", "attention", "long_attention", "embedding_bag", "conv", "depthwise")
}
"""Without the recurrent ones: torch compiles `nn.LSTM` only where it is told to."""
WARM_STEPS = 4
"""Compiled, recorded and planned in these."""


@dataclass
class Side:
    """A model compiled by one backend, and its losses."""

    trained: Trained
    backend: str
    losses: list[float] = field(default_factory=list[float])

    def __post_init__(self) -> None:
        self.call: Callable[..., Tensor] = torch.compile(self.trained.module, backend=self.backend)
        self.optimizer = self.trained.optimizer(self.trained.module.parameters())

    def steps(self, count: int) -> float:
        """Seconds of so many training steps."""
        with no_collections():
            begin = time.perf_counter()
            for _ in range(count):
                loss = self.call(*self.trained.inputs)
                loss.backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.losses.append(loss.item())
            return time.perf_counter() - begin


@dataclass(frozen=True)
class Compared:
    """What one model showed."""

    differs: bool
    times: list[float]
    plans: list[ArenaPlan]
    ordinary: dict[str, int]


def compare(make: Callable[[], Trained], steps: int, rounds: int) -> Compared:
    """One model by both backends."""
    torch.compiler.reset()
    before = set(known())
    sides: dict[str, Side] = {}
    for backend in BACKENDS:
        torch.manual_seed(0)
        sides[backend] = Side(make(), backend)
        sides[backend].steps(WARM_STEPS)
    graphs = [each for each in known() if each not in before]
    took = alternate(rounds, {name: lambda side=side: side.steps(steps) for name, side in sides.items()})
    ours, theirs = (sides[name] for name in reversed(BACKENDS))
    weights = zip(ours.trained.module.parameters(), theirs.trained.module.parameters(), strict=True)
    differs = ours.losses != theirs.losses or not all(torch.equal(one, other) for one, other in weights)
    return Compared(differs, ratios(took["stoker.arena"], took["aot_eager"]), _plans(graphs), _ordinary(graphs))


def _plans(graphs: list[Graphs]) -> list[ArenaPlan]:
    return [layout.record for each in graphs for layout in each.layouts()]


def _ordinary(graphs: list[Graphs]) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in graphs:
        for reason, count in each.ordinary.items():
            found[reason] = found.get(reason, 0) + count
    return found


class _Served(nn.Module):
    """A model that is served: layers of one width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(256, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 64)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).softmax(-1)


def served_in_turn(widths: tuple[int, ...]) -> tuple[float, int]:
    """Bytes of the arena of several models over that of the largest alone; and how many answers differ."""
    torch.compiler.reset()
    torch.manual_seed(0)
    models = [_Served(width) for width in widths]
    x = torch.randn(128, 256)
    different = 0
    sizes: list[int] = []
    for group in ([models[-1]], models):
        before = set(known())
        served = share(group)
        with torch.no_grad():
            for _ in range(4):
                for model, call in zip(group, served, strict=True):
                    different += not torch.equal(model(x), call(x))
        arenas = {id(each.arena): each.arena.nbytes for each in known() if each not in before}
        sizes.append(sum(arenas.values()))
    return sizes[1] / sizes[0], different


def measure(options: Options) -> Report:
    """Six models, then four in turn."""
    report = Report()
    torch.set_num_threads(1)
    chosen = list(MODELS) if options.size != "tiny" else ["mlp"]
    steps, rounds = options.pick(12, 4, 1), options.rounds
    found = {name: compare(MODELS[name], steps, rounds) for name in chosen}
    rows: list[list[str]] = []
    for name, each in found.items():
        plan = max(each.plans, key=lambda plan: plan.peak_bytes, default=None)
        if plan is None:
            rows.append([name, "no plan", "", "", f"{statistics.median(each.times):.2f}", str(each.ordinary)])
            continue
        outside = ", ".join(
            f"{part.operator.split('.')[1]} {format_bytes(part.peak_bytes)}" for part in plan.outside[:2]
        )
        rows.append(
            [
                name, f"{plan.inside_frac:.0%} of {format_bytes(plan.peak_bytes)}", format_bytes(plan.arena_bytes),
                f"{plan.arena_bytes / plan.bound_bytes:.4f}", f"{statistics.median(each.times):.2f}", outside,
            ]
        )  # fmt: skip
    report.table(["model", "inside at the peak", "plan", "over bound", "time / aot_eager", "outside, largest"], rows)
    report.at_most(
        "different", "models whose losses or weights differ", [float(sum(e.differs for e in found.values()))], 0
    )
    worst = max(found.values(), key=lambda each: statistics.median(each.times))
    report.at_most("time", "time over that of aot_eager, slowest model", worst.times, 1.0)
    for name in ("attention", "mlp"):
        if name in found:
            share_inside = max((plan.peak_bytes, plan.inside_frac) for plan in found[name].plans)[1]
            report.at_least(f"inside_{name}", f"{name}: share inside at the peak", [share_inside], 0.65)
    ratio, different = served_in_turn(options.pick((512, 640, 768, 1024), (512, 640, 768, 1024), (64, 128)))
    report.at_most("shared", "arena of models in turn over the largest's", [ratio], 1.02, 3)
    report.at_most("served_different", "answers that differ", [float(different)], 0)
    return report


if __name__ == "__main__":
    sys.exit(run(BAR, measure))

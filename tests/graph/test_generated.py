"""Generated programs: a step as a list of instructions on a few registers, equal to plain torch whatever the cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.graph.watching.modes import _active
from tests.graph.loop import check, drawn, everything

pytestmark = pytest.mark.timeout(120)
NUM_STEPS = 15
LATE = 11
REGISTERS = 5
"""Two for the batch; others are overwritten, so that values inside the cut come and go."""


def batches(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.rand(4, 4, generator=generator), torch.randn(4, 4, generator=generator)


@dataclass
class World:
    """What a program keeps from step to step."""

    weight: torch.Tensor = field(default_factory=lambda: torch.eye(4).requires_grad_())
    ema: torch.Tensor = field(default_factory=lambda: torch.zeros(4, 4))
    buffer: torch.Tensor = field(default_factory=lambda: torch.full((4, 4), 0.5))
    constant: torch.Tensor = field(default_factory=lambda: torch.arange(16.0).view(4, 4).T / 16)
    kept: list[torch.Tensor] = field(default_factory=list)
    number: int = 0
    losses: list[torch.Tensor] = field(default_factory=list)

    def state(self) -> Any:
        return self.weight, self.ema, self.buffer, self.constant, self.kept[-8:]


def _use(a: torch.Tensor, w: World) -> torch.Tensor:
    w.losses.append((a.clone() @ w.weight).sum())
    return w.losses[-1].detach().expand(4, 4)


def _use_as_it_is(a: torch.Tensor, w: World) -> torch.Tensor:
    w.losses.append((a * w.weight).mean())
    return a


def _track(a: torch.Tensor, w: World) -> torch.Tensor:
    w.ema.mul_(0.9).add_(a, alpha=0.1)
    return w.ema * 1.0


def _change_unseen(a: torch.Tensor, w: World) -> torch.Tensor:
    w.buffer.data.add_(0.01)
    return a + w.buffer


def _change_by_numpy(a: torch.Tensor, w: World) -> torch.Tensor:
    w.constant.numpy()[0, 0] += 1
    return a


def _keep(a: torch.Tensor, w: World) -> torch.Tensor:
    w.kept.append(a)
    return a


def _remember(a: torch.Tensor, w: World) -> torch.Tensor:
    return w.kept[-3] + a if len(w.kept) > 2 else a * 1


def _set_row(a: torch.Tensor, w: World) -> torch.Tensor:
    a[0] = 0.25
    return a


def _numpy(a: torch.Tensor, w: World) -> torch.Tensor:
    a.numpy()[1] = 2.0
    return a


def _in_halves(a: torch.Tensor, w: World) -> torch.Tensor:
    one, other = a.chunk(2, 1)
    return torch.cat([other, one], dim=1)


def _read(a: torch.Tensor, w: World) -> torch.Tensor:
    return torch.full((4, 4), fill_value=round(float(a.sum()), 1))


Unary = Callable[[torch.Tensor, World], torch.Tensor]
UNARY: dict[str, Unary] = {
    "sin": lambda a, w: torch.sin(a),
    "exp": lambda a, w: a.abs().neg().exp(),
    "relu": lambda a, w: F.relu(a),
    "softmax": lambda a, w: a.softmax(-1),
    "double": lambda a, w: a.to(torch.float64).sqrt().to(a.dtype),
    "half": lambda a, w: a.half().float(),
    "ids": lambda a, w: (a.long() % 7).float(),
    "clamp": lambda a, w: torch.clamp(a, min=-0.5, max=0.9),
    "row sums": lambda a, w: a.sum(dim=1, keepdim=True).expand(4, 4),
    "maxima": lambda a, w: a.max(1).values[:, None] + a.max(0)[0],
    "sorted": lambda a, w: torch.sort(a, dim=0).values,
    "unbound": lambda a, w: torch.stack(list(reversed(torch.unbind(a)))),
    "halves": _in_halves,
    "padded": lambda a, w: F.pad(a, (1, 0))[:, :4],
    "picked": lambda a, w: a[torch.arange(3, -1, -1)],
    "masked": lambda a, w: torch.where(a > 0.3, a, torch.zeros(4, 1)),
    "left out": lambda a, w: a[a[:, 0] > -1.5][:1].expand(4, 4),
    "times five": lambda a, w: a * 5,
    "less a constant": lambda a, w: a - w.constant,
    "less a buffer": lambda a, w: a - w.buffer,
    "times the step": lambda a, w: a * float(w.number),
    "times what changes late": lambda a, w: a * (0.5 if w.number < LATE else -0.0),
    "plus ones": lambda a, w: a + torch.ones(4) * torch.linspace(0, 1, 4),
    # views, and what may be the same tensor
    "turned": lambda a, w: a.T,
    "rows": lambda a, w: a[::2].repeat(2, 1),
    "reshaped": lambda a, w: a.reshape(2, 8).view(4, 4),
    "contiguous": lambda a, w: a.contiguous(),
    "as float": lambda a, w: a.float(),
    "viewed": lambda a, w: a[:, :],
    "detached": lambda a, w: a.detach(),
    # writes
    "plus half in place": lambda a, w: a.add_(0.5),
    "relu in place": lambda a, w: F.relu(a, inplace=True),
    "column in place": lambda a, w: (a[:, 1].zero_(), a)[1],
    "row in place": _set_row,
    "by data": lambda a, w: (a.data.mul_(1.5), a)[1],
    "by numpy": _numpy,
    "out": lambda a, w: torch.add(a, 1, out=torch.zeros(4, 4)),
    "out of itself": lambda a, w: torch.mul(a, 0.5, out=a),
    # randomness
    "noise": lambda a, w: a + torch.rand_like(a),
    "dropout": lambda a, w: F.dropout(a, 0.5),
    "shuffled": lambda a, w: a[torch.randperm(4)],
    # state
    "weighed": _use,
    "weighed as it is": _use_as_it_is,
    "tracked": _track,
    "buffer changed": _change_unseen,
    "constant changed": _change_by_numpy,
    "kept": _keep,
    "remembered": _remember,
    "read": _read,
}
BINARY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "product": lambda a, b: a * b,
    "matrix product": lambda a, b: a @ b,
    "maximum": torch.maximum,
    "mean of both": lambda a, b: torch.stack([a, b]).mean(0),
    "one after the other": lambda a, b: torch.cat((a, b), 0)[2:6],
    "branch": lambda a, b: a * 2 if a.mean() > b.mean() else b,
    "branch on an item": lambda a, b: a.flip(0) if a[0, 0].item() > 0.5 else a,
    "copied": lambda a, b: a.copy_(b),
    "added in place": lambda a, b: a.add_(b),
    "weighted": lambda a, b: torch.lerp(a, b, weight=0.3),
}
WHEN: dict[str, Callable[[int], bool]] = {
    "always": lambda number: True,
    "late": lambda number: number >= LATE,
    "once": lambda number: number == LATE,
    "until late": lambda number: number < LATE,
    "every third": lambda number: number % 3 == 2,
}


@dataclass(frozen=True)
class Instruction:
    """``registers[target] = name(registers[one], registers[other])``, in some steps."""

    name: str
    one: int
    other: int
    target: int
    when: str


@dataclass
class Machine:
    """A program that does as instructed."""

    instructions: list[Instruction]
    outputs: list[int]
    world: World = field(default_factory=World)

    def step(self, number: int, x: torch.Tensor, y: torch.Tensor) -> Any:
        w = self.world
        w.number = number
        registers: list[torch.Tensor] = [x, y, x, y, x]
        errors: list[str] = []
        for todo in self.instructions:
            if WHEN[todo.when](number):
                try:
                    registers[todo.target] = self._do(todo, registers)
                except RuntimeError as error:  # a write to memory that several elements share, say
                    errors.append(str(error)[:60])
        results: list[Any] = [*(registers[place] for place in self.outputs), *errors]
        if w.losses:
            try:
                sum(w.losses).backward()
            except RuntimeError as error:  # a value that a graph needs was written to
                results.append(str(error)[:60])
            w.losses.clear()
            if w.weight.grad is not None:
                with torch.no_grad():
                    w.weight -= 0.1 * w.weight.grad.clamp(-1, 1)
                w.weight.grad = None
        return results

    def _do(self, todo: Instruction, registers: list[torch.Tensor]) -> torch.Tensor:
        a = registers[todo.one]
        if todo.name in UNARY:
            return UNARY[todo.name](a, self.world)
        return BINARY[todo.name](a, registers[todo.other])


registers = st.integers(0, REGISTERS - 1)
common = st.sampled_from(["always"] * 5 + list(WHEN))
instruction = st.builds(
    Instruction, st.sampled_from([*UNARY, *BINARY]), registers, registers, st.integers(1, REGISTERS - 1), common
)


@pytest.fixture(autouse=True)
def _nothing_is_watched_after_a_failure():
    yield
    for watch in list(_active):
        watch.detach()


@settings(max_examples=settings.default.max_examples // 2)  # half of the profile's: each makes thirty steps
@given(
    st.lists(instruction, min_size=2, max_size=12),
    st.lists(registers, min_size=1, max_size=2),
    st.one_of(st.just(everything), st.builds(drawn, st.integers(0, 99), st.sampled_from((0.4, 0.8)))),
    st.sampled_from((0, 0, 0, 1, 2)),
)
def test_a_generated_program_is_equal_whatever_the_cut(instructions, outputs, chooser, ahead):
    def program():
        machine = Machine(instructions, outputs)
        return machine.step, machine.world.state

    check(program, batches, NUM_STEPS, chooser=chooser, ahead=ahead)


def test_generated_programs_do_move_calls():
    names = ["sin", "halves", "maxima", "less a constant", "product", "weighed", "turned", "double"]
    instructions = [Instruction(name, 2, 3, 2, "always") for name in names]

    def program():
        machine = Machine(instructions, [2])
        return machine.step, machine.world.state

    outcome = check(program, batches, NUM_STEPS)
    assert outcome.moved >= 8
    assert outcome.prepared == NUM_STEPS - 6

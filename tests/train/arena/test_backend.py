"""Compiled steps in a planned arena: equal to ``aot_eager`` bit for bit, whatever a program does between the passes."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as functional
from torch import Tensor, nn

import stoker.train.arena.backend as backends
import stoker.train.arena.running as running
from stoker.train.arena.running import Graphs


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.compiler.reset()
    backends._arenas.clear()  # numbers of code begin again with the reset, and earlier models may still be alive
    yield
    torch.compiler.reset()
    torch.set_num_threads(before)


class Mlp(nn.Module):
    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(32, width), nn.ReLU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 8)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


Program = Callable[[Callable[..., Any], nn.Module], list[Any]]


def both(program: Program, make: Callable[[], nn.Module] = Mlp) -> tuple[list[Any], list[Graphs]]:
    """What a program returns with the arena, compared with `aot_eager`; and its compiled graphs."""
    found: list[list[Any]] = []
    for backend in ("aot_eager", "stoker.arena"):
        torch.compiler.reset()
        known = set(running.known())
        torch.manual_seed(0)
        module = make()
        found.append(program(torch.compile(module, backend=backend), module))
    for one, other in zip(*found, strict=True):
        if isinstance(one, Tensor):
            assert torch.equal(one, other)
        else:
            assert one == other
    return found[1], [each for each in running.known() if each not in known]


def inputs(count: int, size: int = 16) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(size, 32, generator=generator) for _ in range(count)]


def trained(call: Callable[..., Any], module: nn.Module, batches: list[Tensor]) -> list[Any]:
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    losses: list[Any] = []
    for x in batches:
        loss = call(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses + [each.detach().clone() for each in module.parameters()]


def test_steps_are_equal_and_lie_in_one_plan() -> None:
    _, (graphs,) = both(lambda call, module: trained(call, module, inputs(6)))
    assert graphs.planned_passes >= 2 * 3
    (layout,) = graphs.layouts()
    # What the forward pass saves and what the backward pass makes share bytes: less than all of them one after another.
    assert layout.record.inside_frac > 0.9
    assert layout.nbytes == layout.record.bound_bytes == graphs.arena.nbytes
    assert graphs.arena.num_foreign() == 0


def test_gradients_add_up() -> None:
    def program(call: Callable[..., Any], module: nn.Module) -> list[Any]:
        for x in inputs(6):
            call(x).square().mean().backward()
        return [cast("Tensor", each.grad).clone() for each in module.parameters()]

    _, (graphs,) = both(program)
    assert graphs.planned_passes


def test_a_second_forward_before_the_backward() -> None:
    def program(call: Callable[..., Any], module: nn.Module) -> list[Any]:
        found: list[Any] = trained(call, module, inputs(4))
        for one, other in zip(inputs(4), inputs(8)[4:], strict=True):
            first, second = call(one), call(other)
            (first.square().mean() + second.abs().mean()).backward()
            found += [cast("Tensor", each.grad).clone() for each in module.parameters()]
        return found

    _, (graphs,) = both(program)
    assert graphs.ordinary[running.BUSY] == 4


def test_a_backward_that_never_comes() -> None:
    def program(call: Callable[..., Any], module: nn.Module) -> list[Any]:
        found: list[Any] = trained(call, module, inputs(4))
        found += [call(x).detach() for x in inputs(3)]
        return found + trained(call, module, inputs(2))

    _, (graphs,) = both(program)
    assert not graphs.ordinary[running.BUSY]


def test_a_backward_that_runs_twice() -> None:
    def program(call: Callable[..., Any], module: nn.Module) -> list[Any]:
        found: list[Any] = trained(call, module, inputs(4))
        loss = call(inputs(1)[0]).square().mean()
        loss.backward(retain_graph=True)
        found += [cast("Tensor", each.grad).clone() for each in module.parameters()]
        loss.backward()
        found += [cast("Tensor", each.grad).clone() for each in module.parameters()]
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
        return found

    # Torch refuses this by default where some of what is saved may be donated to the backward pass.
    with torch._functorch.config.patch(donated_buffer=False):
        _, (graphs,) = both(program)
    assert graphs.ordinary[running.KEPT] == 1


def test_double_backward_fails_as_it_does_in_torch() -> None:
    def program(call: Callable[..., Any], module: nn.Module) -> list[Any]:
        trained(call, module, inputs(4))
        x = inputs(1)[0].requires_grad_()
        (gradient,) = torch.autograd.grad(call(x).square().mean(), [x], create_graph=True)
        with pytest.raises(RuntimeError, match="double backward"):
            gradient.sum().backward()
        return [gradient.detach()]

    both(program)


@pytest.mark.parametrize("form", ["views", "themselves"])
def test_what_a_program_keeps_is_not_overwritten(form: str) -> None:
    """Outputs, and tensors that autograd saved, taken from the graph."""

    def program(call: Callable[..., Any], module: nn.Module) -> list[Any]:
        trained(call, module, inputs(4))
        kept: list[Tensor] = []
        for x in inputs(5):
            result = call(x)
            node = cast("Any", result.grad_fn)
            views = [each.flatten()[3:].detach() for each in node.saved_tensors] if form == "views" else []
            views = [*node.saved_tensors] if form == "themselves" else views
            copies = [each.clone() for each in views]
            result.square().mean().backward()
            kept.append(result.detach())
            assert all(torch.equal(one, other) for one, other in zip(views, copies, strict=True))
            kept += views
        return kept

    _, (graphs,) = both(program)
    assert graphs.ordinary[running.HELD] + graphs.ordinary[running.BUSY] >= 5


def test_hooks_of_saved_tensors() -> None:
    def program(call: Callable[..., Any], module: nn.Module) -> list[Any]:
        found = trained(call, module, inputs(4))
        with torch.autograd.graph.save_on_cpu():
            found += trained(call, module, inputs(3))
        packed: list[Tensor] = []

        def pack(value: Tensor) -> Tensor:
            packed.append(value)
            return value

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
            found += trained(call, module, inputs(2))
        return found + trained(call, module, inputs(2)) + [each.detach() for each in packed]

    both(program)


def test_a_backward_pass_that_failed_is_not_run_on_what_it_left() -> None:
    """The naive arena computes gradients from overwritten activations."""
    torch.manual_seed(0)
    known = set(running.known())
    module = Mlp()
    call = torch.compile(module, backend="stoker.arena")
    trained(call, module, inputs(4))
    (graphs,) = set(running.known()) - known
    loss = call(inputs(1)[0]).square().mean()
    (shape,) = graphs._shapes.values()
    run = shape.run_backward
    assert run is not None

    def failing(args: list[Any]) -> Any:
        run(args)
        raise MemoryError("as an operator may raise midway")

    shape.run_backward = failing
    with pytest.raises(MemoryError):
        loss.backward()
    shape.run_backward = run
    with pytest.raises(RuntimeError, match=r"run the forward pass again|second time"):
        loss.backward()
    del loss
    assert trained(call, module, inputs(2))


def test_evaluation_between_training_steps() -> None:
    def program(call: Callable[..., Any], module: nn.Module) -> list[Any]:
        found: list[Any] = []
        for _ in range(4):
            found += trained(call, module, inputs(3))
            with torch.no_grad():
                found += [call(x) for x in inputs(3)]
            with torch.inference_mode():
                found += [call(x).clone() for x in inputs(3)]
        return found

    _, graphs = both(program)
    assert all(each.planned_passes for each in graphs)


def test_other_shapes_have_plans_of_their_own() -> None:
    def program(call: Callable[..., Any], module: nn.Module) -> list[Any]:
        found: list[Any] = []
        for _ in range(4):
            found += trained(call, module, inputs(4))
            found += trained(call, module, inputs(1, size=7))
            found += trained(call, module, inputs(1, size=40))
        return found

    _, graphs = both(program)
    dynamic = [each for each in graphs if len(each.layouts()) > 1]
    assert dynamic
    assert dynamic[0].planned_passes


class Mixed(nn.Module):
    """Statistics that change in place, a result that is a view of another one, and an input that is changed."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.dense = nn.BatchNorm1d(32), nn.Linear(32, 32)
        self.register_buffer("steps", torch.zeros(256))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x.mul_(2.0)
        self.steps += 1
        hidden = functional.relu(self.dense(self.norm(x)))
        shown = hidden.view(-1)[5:]
        return hidden, shown, functional.dropout(hidden.t(), 0.5).sum(0)


def test_changes_in_place_and_results_that_share_memory() -> None:
    def program(call: Callable[..., Any], module: nn.Module) -> list[Any]:
        found: list[Any] = []
        torch.manual_seed(3)
        for x in inputs(6):
            hidden, shown, total = call(x)
            (hidden.mean() + shown.square().mean() + total.mean()).backward()
            found += [hidden.detach(), shown.detach(), x]
            with torch.no_grad():
                shown.add_(1.0)  # also a change of `hidden`
        return found + [each.clone() for each in module.buffers()]

    _, (graphs,) = both(program, Mixed)
    assert graphs.planned_passes


def test_a_copy_of_a_compiled_module() -> None:
    def program(call: Callable[..., Any], module: nn.Module) -> list[Any]:
        found = trained(call, module, inputs(4))
        other = copy.deepcopy(call)
        found += trained(other, cast("nn.Module", other), inputs(3)) + trained(call, module, inputs(3))
        first, second = call(inputs(1)[0]), other(inputs(2)[1])
        (first.mean() + second.mean()).backward()
        return found + [
            cast("Tensor", each.grad) for each in [*module.parameters(), *cast("nn.Module", other).parameters()]
        ]

    both(program)


def test_autocast() -> None:
    def program(call: Callable[..., Any], module: nn.Module) -> list[Any]:
        with torch.autocast("cpu", torch.bfloat16):
            return trained(call, module, inputs(5))

    _, (graphs,) = both(program)
    assert graphs.planned_passes


def test_threads_do_not_share_what_is_saved() -> None:
    torch.manual_seed(0)
    known = set(running.known())
    module = Mlp()
    call = torch.compile(module, backend="stoker.arena")
    trained(call, module, inputs(4))
    (graphs,) = set(running.known()) - known
    batches = inputs(40)
    wanted = [torch.autograd.grad(module(x).square().mean(), list(module.parameters())) for x in batches]
    wrong: list[int] = []
    barrier = threading.Barrier(3)

    def work(part: int) -> None:
        barrier.wait()
        for number in range(part, len(batches), 3):
            found = torch.autograd.grad(call(batches[number]).square().mean(), list(module.parameters()))
            if not all(torch.allclose(one, other, atol=1e-6) for one, other in zip(found, wanted[number], strict=True)):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(part,)) for part in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong
    assert graphs.arena.num_foreign() == 0

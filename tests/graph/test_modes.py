"""The program's own modes are left as found, and see what they would see without stoker."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode

from stoker.graph.watching.modes import _active
from tests.graph.loop import FIRST_SUBSTITUTED, Source, everything, frozen

pytestmark = pytest.mark.timeout(60)
STEPS = FIRST_SUBSTITUTED + 5


class Seen(TorchFunctionMode):
    """A mode of the program: counts calls."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(getattr(func, "__name__", ""))
        return func(*args, **(kwargs or {}))


class Operations(TorchDispatchMode):
    """A mode of the program that counts what is computed, as counters of operations do."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def _nothing_is_watched_after_a_failure():
    yield
    for watch in list(_active):
        watch.detach()
    while torch._C._len_torch_function_stack():
        torch._C._pop_torch_function_stack()


def batches(number: int) -> tuple[torch.Tensor]:
    generator = torch.Generator(device="cpu").manual_seed(number)
    return (torch.rand(6, 4, generator=generator, device="cpu"),)


def stack() -> list[Any]:
    return [torch._C._get_function_stack_at(place) for place in range(torch._C._len_torch_function_stack())]


def step(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(torch.cos(torch.sin(x) * 2))


def both(run: Any) -> tuple[Any, Source]:
    """What a run gives with stoker, after it was seen to be what it gives without."""
    source = Source(batches, everything, "pickled")
    ours = run(source.ask)
    source.cutter.left()
    assert source.prepared, "nothing was substituted"
    theirs = run(batches)
    assert ours == theirs
    return ours, source


def _device(name: str) -> Any:
    return lambda: torch.device(name)


AROUND = {
    "meta": _device("meta"),
    "cpu": _device("cpu"),
    "device context": lambda: DeviceContext(torch.device("meta")),
    "function mode": Seen,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "disabled": torch._C.DisableTorchFunctionSubclass,
}


@pytest.mark.parametrize("name", AROUND)
@pytest.mark.parametrize("end", ["break", "raise", "exhausted"])
def test_a_mode_around_the_loop_is_left_as_found(name, end):
    source = Source(batches, everything, "pickled")
    results = []
    with contextlib.suppress(KeyError), AROUND[name]() as mode:
        found = stack()
        for number in range(STEPS):
            (x,) = source.ask(number)
            y = step(x)
            results.append((frozen(y), str(torch.ones(2).device)))
            if number == STEPS - 2 and end == "break":
                break
            if number == STEPS - 2 and end == "raise":
                raise KeyError
        source.cutter.left()
        assert stack() == found
        del mode
    if end == "raise":
        source.cutter.left()
    assert stack() == []
    with AROUND[name]():
        plain = [(frozen(step(*batches(number))), str(torch.ones(2).device)) for number in range(len(results))]
    assert results == plain


@pytest.mark.parametrize("name", AROUND)
def test_a_mode_is_left_while_the_loop_is_still_held(name):
    """``break`` leaves the block around a loop whose iterator somebody keeps."""
    source = Source(batches, everything, "pickled")
    for stop in (4, STEPS):
        with AROUND[name]():
            for number in range(stop):
                (x,) = source.ask(number)
                step(x)
        assert stack() in ([], [*_active])
    source.cutter.left()
    assert stack() == []


@pytest.mark.parametrize("name", AROUND)
@pytest.mark.parametrize("late", [False, True])
def test_a_mode_inside_a_step(name, late):
    def run(ask):
        results = []
        for number in range(STEPS):
            (x,) = ask(number)
            y = torch.sin(x)
            around = AROUND[name]() if not late or number >= FIRST_SUBSTITUTED + 2 else contextlib.nullcontext()
            with around:
                y = torch.cos(y)
                z = torch.ones(4) * 2 if name not in ("meta", "device context") else torch.ones(4).shape
            results.append(frozen([torch.exp(y.detach().clone()), z]))
        return results

    both(run)


def test_a_mode_of_the_program_sees_every_call():
    def run(ask):
        names = []
        for number in range(STEPS):
            (x,) = ask(number)
            with Seen() as seen:
                step(x).sum().item()
            names.append(tuple(seen.names))
        return names

    both(run)


def test_a_mode_that_counts_operations_sees_them_all():
    def run(ask):
        names = []
        for number in range(STEPS):
            (x,) = ask(number)
            with Operations() if number == STEPS - 1 else contextlib.nullcontext() as operations:
                step(x)
            names.append(operations.names if operations else None)
        return names

    ours, _ = both(run)
    assert len(ours[-1]) >= 4


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_transforms_in_a_step():
    def run(ask):
        weight = torch.ones(4, requires_grad=True)
        results = []
        for number in range(STEPS):
            (x,) = ask(number)
            y = torch.sin(x)
            rows = torch.vmap(lambda row, y=y: (row * 2).sum() + y.mean())(x)
            slopes = torch.func.vmap(torch.func.grad(lambda row: (row.sin() * weight.detach()).sum()))(y)
            _, tangent = torch.func.jvp(torch.cos, (x,), (torch.ones_like(x),))
            z = torch.cos(y)
            results.append(frozen([rows, slopes, tangent, torch.exp(z)]))
        return results

    both(run)


def test_deterministic_algorithms_and_grad_modes():
    def run(ask):
        results = []
        for number in range(STEPS):
            torch.use_deterministic_algorithms(number % 2 == 0)
            try:
                (x,) = ask(number)
                with torch.set_grad_enabled(number % 3 > 0):
                    y = step(x)
                    z = y.index_add(0, torch.tensor([0, 0, 1]), torch.ones(3, 4))
                results.append(frozen([y, z, torch.is_grad_enabled()]))
            finally:
                torch.use_deterministic_algorithms(False)
        return results

    both(run)


def test_the_default_device_changes_between_steps():
    def run(ask):
        results = []
        try:
            for number in range(STEPS):
                if number == FIRST_SUBSTITUTED + 2:
                    torch.set_default_device("meta")
                (x,) = ask(number)
                y = torch.sin(x)
                z = torch.arange(4)
                results.append((frozen(y), z.device.type))
        finally:
            torch.set_default_device(None)
        return results

    ours, _ = both(run)
    assert ours[-1][1] == "meta"


def test_evaluation_in_between():
    def run(ask):
        torch.manual_seed(0)
        net = nn.Linear(4, 2)
        results = []
        for number in range(STEPS):
            (x,) = ask(number)
            if number % 4 == 3:
                net.eval()
                with torch.inference_mode():
                    results.append(frozen(net(torch.sin(x)).sum().item()))
                net.train()
            y = net(torch.cos(torch.sin(x)))
            y.sum().backward()
            results.append(frozen([y.detach(), net.weight.grad]))
        return results

    both(run)


def test_compiled_code_finds_no_mode_and_is_not_compiled_again():
    from torch._dynamo.utils import counters

    def run(ask):
        torch._dynamo.reset()
        counters.clear()
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        compiled = torch.compile(net, backend="eager", fullgraph=True)
        function = torch.compile(lambda a: torch.cos(a) * 2, backend="eager", fullgraph=True)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        results = []
        with torch._dynamo.config.patch(error_on_recompile=True):
            for number in range(STEPS):
                (x,) = ask(number)
                x = torch.log1p(torch.sin(x) + 1)
                loss = compiled(function(x) + 1).mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                results.append(frozen(loss.detach()))
        return results, frozen(list(net.parameters())), counters["stats"]["unique_graphs"]

    (_, _, graphs), source = both(run)
    assert graphs == 2
    assert source.verdicts[-1].outcome == "moved"

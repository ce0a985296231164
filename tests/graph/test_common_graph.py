"""Steps as they are recorded, and what several of them have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from stoker.graph.leaves import leaves_of, signature_of
from stoker.graph.recording.common_graph import Recording, merge
from stoker.graph.recording.recorder import Recorder, Trace
from stoker.graph.watching.modes import CallWatch


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.rand(4, 3, generator=generator), torch.randint(0, 9, (4,), generator=generator)


def record(step: Callable[..., Any], number: int, expected: int = 0) -> Trace:
    leaves = leaves_of(batch(number))
    recorder = Recorder(leaves, signature_of(leaves), expected)
    watch = CallWatch(lambda compiled: None, lambda: False)
    watch.set_steps([recorder])
    try:
        step(number, *leaves)
    finally:
        watch.detach()
    return recorder.finish(1.0, 1.0)


def merged(step: Callable[..., Any], count: int = 3) -> Recording:
    traces: list[Trace] = []
    for number in range(count):
        traces.append(record(step, number, len(traces[-1].calls) if traces else 0))
    return merge(traces)


def stateless(recording: Recording) -> list[str]:
    return [node.function.rpartition(".")[2] for node in recording.graph.nodes if not node.state]


def why(recording: Recording, name: str) -> str:
    return next(node.state for node in recording.graph.nodes if node.function.endswith(name))


def test_what_depends_on_the_batch_and_constants_is_stateless():
    table = torch.arange(9.0)

    def step(number, x, ids):
        return (torch.sin(x) * 2).cumsum(dim=1), torch.take(table, ids).exp()

    assert stateless(merged(step)) == ["sin", "mul", "cumsum", "take", "exp"]


def test_a_scalar_that_differs_is_state_and_so_is_what_depends_on_it():
    def step(number, x, ids):
        torch.exp(torch.cos(torch.sin(x) * float(number)))
        torch.abs(x)

    recording = merged(step)
    assert stateless(recording) == ["sin", "abs"]
    assert "differs between steps" in why(recording, "mul")
    assert "depends on `mul`" in why(recording, "cos")


def test_an_outside_tensor_that_changes_is_state_however_it_is_changed():
    ema, alias = torch.zeros(3), torch.zeros(3)

    def step(number, x, ids):
        torch.sub(x, ema)
        torch.add(x, alias)
        ema.add_(x.mean(0))
        alias.data.add_(1)

    recording = merged(step)
    assert stateless(recording) == ["mean"]
    assert "outside the step changes" in why(recording, "add")


def test_the_graph_ends_where_the_calls_differ():
    def step(number, x, ids):
        y = torch.sin(x)
        y = torch.cos(y) if number % 2 else torch.exp(y)
        torch.abs(y)

    recording = merged(step)
    assert stateless(recording) == ["sin"]
    assert any("differ from step to step" in node.state for node in recording.graph.nodes)


def test_parameters_random_numbers_and_large_tensors_are_state():
    weight, large = torch.ones(3, requires_grad=True), torch.ones(600_000)

    def step(number, x, ids):
        torch.sin(x) * weight
        torch.bernoulli(x)
        torch.rand_like(x)
        large[ids]

    recording = merged(step)
    assert stateless(recording) == ["sin"]
    assert "parameters" in why(recording, "mul")
    assert "random" in why(recording, "rand_like")
    assert "1 MB" in why(recording, "__getitem__")


def test_what_is_written_to_is_state_from_there_on():
    def step(number, x, ids):
        y = torch.sin(x)
        view = y[0]
        torch.cos(y)
        view.zero_()
        torch.exp(y)
        x.numpy()
        torch.abs(x)

    recording = merged(step)
    assert stateless(recording) == ["sin", "__getitem__", "cos"]
    assert "written to" in why(recording, "zero_")
    assert "handed out" in why(recording, "numpy")


def test_writes_that_no_name_tells_are_seen():
    table, mean, var = torch.ones(9, 3), torch.zeros(3), torch.ones(3)

    def step(number, x, ids):
        torch.nn.functional.embedding(ids, table, max_norm=0.5)
        torch.nn.functional.batch_norm(x, mean, var, training=True, momentum=0.0)
        torch.exp(x)

    recording = merged(step)
    assert stateless(recording) == ["exp"]
    assert "statistics" in why(recording, "batch_norm")


def test_what_goes_to_python_or_is_kept_is_needed_here():
    kept: list[torch.Tensor] = []

    def step(number, x, ids):
        y = torch.sin(x)
        kept.append(torch.cos(y))
        y.sum().item()

    graph = merged(step).graph
    total = next(node for node in graph.nodes if node.function.endswith(".sum")).outputs[0]
    cosine = next(node for node in graph.nodes if node.function.endswith("cos")).outputs[0]
    assert cosine in graph.kept
    assert any(node.state and total in node.inputs for node in graph.nodes)


def test_a_traced_value_is_not_kept_alive_by_the_recorder():
    import weakref

    gone: list[bool] = []

    def step(number, x, ids):
        y = torch.sin(x)
        reference = weakref.ref(y)
        y = torch.cos(y)
        gone.append(reference() is None)

    merged(step)
    assert gone == [True] * 3

"""Models with several outputs: none is left out of what is chosen, counted and refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from stoker.deploy.comparing import error_of, expected_flips, loss_of, paired, spread_error
from stoker.deploy.importing.mixed import mixed_designs
from stoker.deploy.importing.quantising import import_module, outputs, quantise
from stoker.deploy.importing.samples import Samples
from stoker.deploy.lowering.grids import Widths
from stoker.deploy.lowering.lowering import LoweringOptions
from stoker.records.deploy.quantisation import PairedAccuracy, QuantisationRecord
from stoker.serve.engines.torch_model import of_definition
from stoker.ui.deploy.quantisation_text import render_quantisation
from tests.deploy.networks import Of

CHANCE = np.random.default_rng(0)
SCORES = CHANCE.normal(size=(200, 4))
NUMBERS = CHANCE.normal(size=(200, 3, 2)) * 50


def test_a_sample_is_changed_if_any_output_decides_otherwise() -> None:
    first, second = SCORES.copy(), SCORES.copy()
    for found, at in ((first, (0, 1)), (second, (1, 2))):
        for sample in at:
            found[sample] = found[sample][::-1]
    both = paired(
        [first, second, NUMBERS + 20], [SCORES, SCORES, NUMBERS], SCORES.argmax(axis=1), names=["a", "b", "c"]
    )
    alone = paired(first, SCORES, SCORES.argmax(axis=1))
    assert (alone.flips, both.flips, both.right, both.float_right) == (2, 3, 198, 200)
    assert alone.outputs == []
    assert [(each.name, each.flips) for each in both.outputs] == [("a", 2), ("b", 2), ("c", None)]
    assert both.error == both.outputs[2].error == max(each.error for each in both.outputs) == pytest.approx(0.4, 0.1)


def test_errors_and_losses_count_every_output() -> None:
    noise = 0.1 * CHANCE.normal(size=SCORES.shape)
    same, off = [SCORES, SCORES], [SCORES, SCORES + noise]
    assert loss_of(same, same) == error_of(same, same) == 0.0
    assert loss_of(off, same) == loss_of(SCORES + noise, SCORES) > 0.005
    assert error_of(off, same) == pytest.approx(error_of(SCORES + noise, SCORES) / 2**0.5)
    assert expected_flips([SCORES + noise] * 2, same) > 1.5 * expected_flips(SCORES + noise, SCORES)
    # Outputs that are no scores are held by their error, in any unit.
    assert loss_of([SCORES, NUMBERS + 5], [SCORES, NUMBERS]) == spread_error(NUMBERS + 5, NUMBERS) > 0.05


def two_heads() -> nn.Module:
    """A head that 8 bits do not change, and one whose weights differ so much that narrow ones lose it."""
    torch.manual_seed(0)
    second = nn.Linear(8, 6)
    with torch.no_grad():
        second.weight[:, 0] *= 5
    return Of(lambda s, x: (s.a(x), s.b(x)), a=nn.Linear(8, 2), b=second).eval()


@pytest.fixture(scope="module")
def samples() -> Samples:
    torch.manual_seed(1)
    x = torch.randn(400, 8)
    x[:, 0] *= 0.2
    return Samples((x,), None)


@pytest.mark.integration
def test_the_record_and_the_page_tell_of_each_output(samples: Samples) -> None:
    widths = Widths(weights_by_layer={"b": 3})
    found = quantise(two_heads(), samples, widths=widths)
    accept = found.record.accept
    first, second = accept.outputs
    assert (first.name, second.name) == ("output_0", "output_1")
    assert second.error > 2 * first.error
    assert accept.error == second.error
    assert first.flips is not None
    assert second.flips is not None
    assert accept.flips is not None
    assert max(first.flips, second.flips) <= accept.flips <= first.flips + second.flips
    assert accept.flips > first.flips
    assert min(found.record.tried, key=lambda each: each.error).rule == found.record.rule
    page = render_quantisation(found.record, "here", "0" * 64)
    for said in (f"flips             {accept.flips} of 100 in any output", "in the worst output", "output_1"):
        assert " ".join(said.split()) in " ".join(page.split())
    assert "any output" not in render_quantisation(one_output(samples), "here", "0" * 64)


def one_output(samples: Samples) -> QuantisationRecord:
    return quantise(nn.Linear(8, 2), samples).record


@pytest.mark.integration
def test_the_second_output_bounds_the_loss_too(samples: Samples) -> None:
    """Alone, the first output lets both layers have 2 bits."""
    module = two_heads()
    model = import_module(module, samples)
    designs = mixed_designs(model, samples, LoweringOptions(), most=0.1)
    part = samples.part("search")
    for each in designs:
        found, real = outputs(each.lowered.graph, part), model.outputs(part)
        assert max(loss_of(one, other) for one, other in zip(found, real, strict=True)) <= 0.1
    narrow = model.lowered(LoweringOptions(widths=Widths(weights_by_layer={"b": 2})))
    found, real = outputs(narrow.graph, part), model.outputs(part)
    assert loss_of(found[0], real[0]) <= 0.1 < loss_of(found, real)


def test_records_without_outputs_are_read() -> None:
    """Those that were written before each output was measured."""
    found = paired(SCORES, SCORES)
    old = msgspec.to_builtins(found)
    assert "outputs" not in old  # and packages of one output have the bytes that they had
    assert msgspec.convert(old, PairedAccuracy) == found


class Answers(nn.Module):
    def __init__(self, answer: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
        super().__init__()
        self.a, self.b, self.answer = nn.Linear(8, 3), nn.Linear(8, 1), answer

    def forward(self, x: torch.Tensor) -> Any:
        return self.answer(self.a(x), self.b(x))


@pytest.mark.integration
@pytest.mark.parametrize(
    ("answer", "names"),
    [
        (lambda a, b: {"score": b, "klass": a}, ["score", "klass"]),
        (lambda a, b: {"only": a + b}, ["only"]),
        (lambda a, b: {"of klass": a, "score": b}, ["output_0", "output_1"]),
        (lambda a, b: {"both": (a, b)}, ["output_0", "output_1"]),
        (lambda a, b: (a, b), ["output_0", "output_1"]),
        (lambda a, b: (a + b,), ["output_0"]),
        (lambda a, b: [a + b], ["output_0"]),
        (lambda a, b: a + b, ["output"]),
    ],
)
def test_outputs_have_the_keys_of_a_dict(
    samples: Samples, answer: Callable[[torch.Tensor, torch.Tensor], Any], names: list[str]
) -> None:
    model = import_module(Answers(answer), samples)
    graph = model.lowered(LoweringOptions()).graph
    assert [port.name for port in graph.outputs] == names
    shapes = {"score": (1,), "klass": (3,)}
    assert all(port.shape == shapes.get(port.name, port.shape) for port in graph.outputs)


@pytest.mark.integration
@pytest.mark.parametrize(
    "answer",
    [lambda a, b: {"only": a}, lambda a, b: (a, b), lambda a, b: (a,), lambda a, b: [a], lambda a, b: a],
)
def test_outputs_are_named_as_a_service_of_the_module_names_them(
    samples: Samples, answer: Callable[[torch.Tensor, torch.Tensor], Any]
) -> None:
    module = Answers(answer).eval()
    served = of_definition((module, samples.inputs[0]), "here", None, 1).engine().interface
    graph = import_module(module, samples).lowered(LoweringOptions()).graph
    assert [port.name for port in graph.outputs] == [spec.name for spec in served.outputs]

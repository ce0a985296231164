"""Batches of a user's loader: inputs and labels told apart by what the model takes, numbers of any float."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from stoker.core.errors import CalibrationError, ModelImportError
from stoker.deploy.importing.exporting import capture, precision_of
from stoker.deploy.importing.quantising import import_module
from stoker.deploy.importing.samples import gather

CLASSES = torch.arange(16) % 3
X = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.integration
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_weights_of_other_floats_are_captured_as_single_ones(dtype: torch.dtype) -> None:
    model = nn.Linear(4, 3).to(dtype)
    assert precision_of(model) == str(dtype).removeprefix("torch.")
    captured = capture(model, (X[:2],))
    assert {each.dtype for each in captured.tensors.values()} == {torch.float32}
    assert model.weight.dtype == dtype


@pytest.mark.integration
def test_a_traced_module_is_refused_in_words() -> None:
    with warnings.catch_warnings(action="ignore"):  # newer torches call it deprecated
        traced = torch.jit.trace(nn.Linear(4, 3), X)
    assert isinstance(traced, torch.jit.ScriptModule)
    samples = gather([(X, CLASSES)], 16, traced)
    with pytest.raises(ModelImportError, match=r"must be a module of Python.*return the module that was traced"):
        capture(traced, samples.inputs)


def test_numbers_of_other_floats_are_taken_as_single_ones() -> None:
    found = gather([X.double()], 16, nn.Linear(4, 3))
    assert found.inputs[0].dtype == torch.float32
    assert found.notes == ("the loader's float64 numbers are taken as float32",)


@pytest.mark.parametrize(
    ("batches", "said"),
    [
        ([torch.zeros(9, 3, 16, 16), torch.zeros(9, 3, 18, 18)], "one batch has 3 x 16 x 16, another 3 x 18 x 18"),
        ([(X, X), (X,)], "one holds 2 of them, another 1"),
    ],
)
def test_batches_of_several_forms_are_refused(batches: list[object], said: str) -> None:
    with pytest.raises(CalibrationError, match=said):
        gather(batches, 99)


@pytest.mark.parametrize("labels", [CLASSES, CLASSES[:, None], CLASSES.to(torch.uint8), CLASSES.numpy()])
def test_whole_numbers_one_a_sample_are_labels(labels: object) -> None:
    found = gather([(X, labels)], 16, nn.Linear(4, 3))
    assert len(found.inputs) == 1
    assert found.labels is not None
    assert found.labels.tolist() == CLASSES.tolist()
    assert not found.notes


@pytest.mark.parametrize("target", [X[:, :1], X[:, 0], nn.functional.one_hot(CLASSES), X.double()])
def test_targets_that_are_no_labels_are_left_out_with_a_note(target: torch.Tensor) -> None:
    found = gather([(X, target)], 16, nn.Linear(4, 3))
    assert len(found.inputs) == 1
    assert found.labels is None
    assert [each.partition(" are ")[2] for each in found.notes] == ["left out: labels are whole numbers, one a sample"]


class Both(nn.Module):
    def forward(self, left: torch.Tensor, right: torch.Tensor | None = None) -> torch.Tensor:
        return left if right is None else left + right


@pytest.mark.parametrize(
    ("batch", "inputs", "labelled"), [((X, X), 2, False), ((X, CLASSES), 1, True), ((X,), 1, False)]
)
def test_an_argument_with_a_default_is_given_or_not(
    batch: tuple[torch.Tensor, ...], inputs: int, labelled: bool
) -> None:
    found = gather([batch], 16, Both())
    assert len(found.inputs) == inputs
    assert (found.labels is not None) is labelled


class Three(nn.Module):
    def forward(self, x: torch.Tensor, *, y: torch.Tensor | None = None, z: torch.Tensor | None = None) -> torch.Tensor:
        return x + (0 if y is None else 2 * y) + (0 if z is None else x * z)


class ThreeByPlace(Three):
    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None, z: torch.Tensor | None = None) -> torch.Tensor:
        return super().forward(x, y=y, z=z)


@pytest.mark.integration
@pytest.mark.parametrize("kind", [Three, ThreeByPlace])
@pytest.mark.parametrize("names", ["xz", "zyx", "yx"])
def test_what_a_dict_names_goes_to_the_argument_of_that_name(kind: type[nn.Module], names: str) -> None:
    given = {name: X * (at + 1) for at, name in enumerate(names)}
    samples = gather([given | {"labels": CLASSES}], 16, kind())
    assert samples.labels is not None
    captured = import_module(kind(), samples)
    assert captured.captured.inputs == tuple(sorted(names))
    assert np.allclose(captured.outputs(samples)[0], kind()(**given))


class Needing(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None = None) -> torch.Tensor:
        return a + 2 * b if c is None else a * c + b


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (("b", "other", "label"), "lacks a among b, other, label; name its tensors as"),
        (("c", "first"), "lacks a, b among c, first"),
    ],
)
def test_a_dict_that_names_some_arguments_must_name_all_that_are_needed(keys: tuple[str, ...], said: str) -> None:
    with pytest.raises(CalibrationError, match=said):
        gather([dict.fromkeys(keys, X)], 16, Needing())


def test_a_dict_that_names_no_argument_is_taken_by_place() -> None:
    found = gather([{"left": X, "right": 2 * X, "label": CLASSES}], 16, Needing())
    assert [torch.equal(each, by * X) for each, by in zip(found.inputs, (1, 2), strict=True)] == [True, True]
    assert found.labels is not None


def test_batches_that_name_different_arguments_are_refused() -> None:
    with pytest.raises(CalibrationError, match=r"same arguments, and they hold \(x, y\) and \(x, z\)"):
        gather([{"x": X, "y": X}, {"x": X, "z": X}], 99, Three())


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ((X[:, :0], X), "got 0 float32 numbers"),
        ((X.to(torch.complex64),), "got 4 complex64 numbers"),
        ((X[0], torch.tensor(1)), r"got sizes \[4\], \[\]; single samples.* `DataLoader`"),
    ],
)
def test_what_is_no_input_is_refused_with_what_to_do(batch: object, said: str) -> None:
    with pytest.raises(CalibrationError, match=said):
        gather([batch], 16)


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # compiling imports it
@pytest.mark.parametrize("wrap", [nn.DataParallel, torch.compile])
def test_what_is_wrapped_is_called_as_what_it_wraps(wrap: Callable[[nn.Module], nn.Module]) -> None:
    found = gather([(X, X[:, :1])], 16, wrap(nn.Linear(4, 3)))
    assert len(found.inputs) == 1
    found = gather([{"right": X + 1, "left": X}], 16, wrap(Both()))
    assert torch.equal(found.inputs[0], X)

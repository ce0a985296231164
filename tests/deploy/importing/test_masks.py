"""Masks that depend on inputs: as on float, alike in all executions, and without a trace of what they leave out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from stoker.core.errors import CalibrationError, ModelImportError
from stoker.deploy.comparing import spread_error
from stoker.deploy.engines.law import NumpyEngine
from stoker.deploy.engines.native.engine import CompiledEngine
from stoker.deploy.engines.onnx_engine import OnnxEngine
from stoker.deploy.importing.quantising import import_module
from stoker.deploy.importing.samples import Samples
from stoker.deploy.ir import operations as op
from stoker.deploy.ir.graph import IntegerGraph
from stoker.deploy.lowering.lowering import LoweringOptions, lower
from stoker.deploy.package.folder import read_package, write_package
from stoker.deploy.rtl.engine.compiling import least_engine
from stoker.deploy.rtl.engine.ends import beats_of, values_of
from stoker.deploy.rtl.engine.machine import ProgramMachine
from tests.deploy.graphs import numbers_for
from tests.deploy.importing.masked import LENGTH, WIDTH, Inputs, kept, masked_models, rows
from tests.deploy.networks import Of

pytestmark = pytest.mark.integration
MODELS = masked_models()
COMPILED = ("causal encoder", "both ways", "averaged")
"""Of those, C++ is compiled in `make test`."""
FEW = (
    *COMPILED,
    "encoder layer",
    "weights wanted",
    "chosen",
    "flattened",
    "lengths",
    "across",
    "summed up",
    "biased",
    "biased and masked",
)
"""What `make test` imports; between them they have most forms."""
Arrays = dict[str, np.ndarray]


def imported(name: str) -> tuple[IntegerGraph, Inputs]:
    module, make = MODELS[name]
    torch.manual_seed(1)
    samples = Samples(make(64), None)
    model = import_module(module, samples)
    return lower(model.graph, model.seen, LoweringOptions()).graph, samples.inputs


def arrays(graph: IntegerGraph, inputs: Inputs) -> Arrays:
    return {port.name: each.numpy() for port, each in zip(graph.inputs, inputs, strict=True)}


def by_program(graph: IntegerGraph, inputs: Arrays) -> Arrays:
    """Output values by an engine's instructions."""
    image = least_engine(graph, 4)
    machine = ProgramMachine(image)
    words = [np.stack(machine.run(list(beats))) for beats in beats_of(graph, inputs, image.shape.lanes)]
    return values_of(graph, np.stack(words).astype(np.uint16))


def marks_of(name: str) -> list[pytest.MarkDecorator]:
    found = [] if name in FEW else [pytest.mark.exhaustive]
    return [*found, pytest.mark.slow("compiles a program")] if name in COMPILED else found


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks_of(name)) for name in MODELS])
def test_a_mask_is_what_it_is_on_float(name: str, tmp_path: Path) -> None:
    graph, inputs = imported(name)
    given_arrays = arrays(graph, inputs)
    found = NumpyEngine(graph)(given_arrays)["output"]
    with torch.no_grad():
        real = MODELS[name][0](*inputs).numpy()
    assert found.shape == real.shape
    assert spread_error(found, real) < 0.15
    assert np.array_equal(OnnxEngine(graph)(given_arrays)["output"], found)
    if name in COMPILED:
        assert np.array_equal(CompiledEngine(graph, folder=tmp_path)(given_arrays)["output"], found)
    # Over all numbers of the inputs: masks of which nothing counts are among them.
    whole = numbers_for(graph, 3)
    (out,) = (port.value for port in graph.outputs)
    law = NumpyEngine(graph).integers(whole)[out].reshape(3, -1)
    assert np.array_equal(by_program(graph, whole)[out], law)
    assert np.array_equal(OnnxEngine(graph).integers(whole)[out].reshape(3, -1), law)


def filled_as_dropped(self: nn.Module, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    scores = self.l(x) @ x.transpose(1, 2)
    functional.dropout(scores, 0.1, False).masked_fill_(~mask[:, None, :], float("-inf"))
    return scores.softmax(-1) @ x


def zeroed_as_dropped(self: nn.Module, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    counts, scores = mask.float(), self.l(x)
    functional.dropout(counts, 0.1, False).mul_(0)
    return scores * counts[:, :, None] + scores


def scaled_as_dropped(self: nn.Module, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """What was a mask is real numbers."""
    scores, counts = self.l(x), mask.float()
    functional.dropout(counts, 0.1, False).mul_(scores.mean(-1))
    return scores * counts[:, :, None]


def doubled_copy(self: nn.Module, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """A mask in another type is a copy."""
    counts = mask.float()
    counts.mul_(2)
    return self.l(x) * counts[:, :, None] * mask[:, :, None]


def filled_input(self: nn.Module, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    functional.dropout(x, 0.1, False).masked_fill_(~mask[:, :, None], 0.0)
    return self.l(x) * x


@pytest.mark.parametrize(
    "function", [filled_as_dropped, zeroed_as_dropped, scaled_as_dropped, filled_input, doubled_copy]
)
def test_what_is_masked_in_place_is_masked_by_all_its_names(function: Callable[..., torch.Tensor]) -> None:
    torch.manual_seed(1)
    module = Of(function, l=nn.Linear(WIDTH, WIDTH)).requires_grad_(False).eval()
    samples = Samples((rows(64), kept(64)), None)
    model = import_module(module, samples)
    graph = lower(model.graph, model.seen, LoweringOptions()).graph
    found = NumpyEngine(graph)(arrays(graph, samples.inputs))["output"]
    assert spread_error(found, module(*(each.clone() for each in samples.inputs)).numpy()) < 0.05


def test_scores_that_are_masked_in_place_are_refused_as_results() -> None:
    def left_out(self: nn.Module, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        scores = self.l(x)
        self.d(scores).masked_fill_(~mask[:, :, None], float("-inf"))
        return scores

    module = Of(left_out, l=nn.Linear(WIDTH, WIDTH), d=nn.Dropout()).eval()
    with pytest.raises(ModelImportError, match="must be read by a softmax alone"):
        import_module(module, Samples((rows(8), kept(8)), None))


@pytest.mark.exhaustive
@pytest.mark.slow("compiles a program for each")
@pytest.mark.parametrize("name", sorted(set(MODELS) - set(COMPILED)))
def test_the_rest_compiled(name: str, tmp_path: Path) -> None:
    graph, _ = imported(name)
    whole = numbers_for(graph, 9)
    (out,) = (port.value for port in graph.outputs)
    found = CompiledEngine(graph, folder=tmp_path).integers(whole)[out]
    assert np.array_equal(found, NumpyEngine(graph).integers(whole)[out])


@pytest.fixture(scope="module")
def filled() -> IntegerGraph:
    return imported("filled")[0]


@given(seed=st.integers(0, 2**16))
@settings(max_examples=20)
def test_what_is_left_out_has_no_influence(filled: IntegerGraph, seed: int) -> None:
    """Rows of a batch that are masked differ, and so does a sample of which nothing counts: no other number does."""
    torch.manual_seed(seed)
    x, counts = rows(6), kept(6)
    counts[2] = False
    other = torch.where(counts[:, :, None], x, 3 * rows(6))
    law = NumpyEngine(filled)
    first, second = (law(arrays(filled, (each, counts)))["output"] for each in (x, other))
    assert np.array_equal(first[counts.numpy()], second[counts.numpy()])
    assert not first[2].any()
    assert not second[2].any()
    whole = counts.clone()
    whole[2] = True
    assert np.array_equal(np.delete(law(arrays(filled, (x, whole)))["output"], 2, 0), np.delete(first, 2, 0))


@pytest.mark.parametrize(
    ("name", "shape"), [("encoder", (1, 1, LENGTH)), ("causal encoder", (1, LENGTH, LENGTH))]
)  # fmt: skip
def test_one_mask_of_all_layers_is_made_once(name: str, shape: tuple[int, ...]) -> None:
    graph, _ = imported(name)
    softmaxes = [each for each in graph.operations if isinstance(each, op.Softmax)]
    assert len(softmaxes) == 2
    assert len({each.counts for each in softmaxes}) == 1
    assert graph.values[softmaxes[0].counts or ""].shape == shape


def test_inputs_say_what_they_take(tmp_path: Path) -> None:
    graph, inputs = imported("filled")
    assert [port.dtype for port in graph.inputs] == ["float32", "bool"]
    write_package(tmp_path / "package", graph, "masked")
    graph = read_package(tmp_path / "package").graph
    found = NumpyEngine(graph)
    given_arrays = arrays(graph, inputs)
    name = graph.inputs[1].name
    wanted = found(given_arrays)["output"]
    assert np.array_equal(found({**given_arrays, name: given_arrays[name].astype(np.int64)})["output"], wanted)
    with pytest.raises(ValueError, match="must hold 0 to 1, got 0 to 2"):
        found({**given_arrays, name: given_arrays[name].astype(np.int64) * 2})
    with pytest.raises(ValueError, match="must hold bool, got float32"):
        found({**given_arrays, name: given_arrays[name].astype(np.float32)})


def test_a_length_is_as_large_as_samples_have_it() -> None:
    graph, _ = imported("lengths")
    value = graph.value(graph.inputs[1])
    assert (value.low, value.high) == (0, LENGTH)


def where_equal(number: int, low: int, high: int) -> tuple[nn.Module, Inputs]:
    """Shares without the keys of one number, and numbers of samples."""
    torch.manual_seed(0)
    module = Of(
        lambda s, x, m: s.l(x).masked_fill((m == number)[:, None], float("-inf")).softmax(-1), l=nn.Linear(WIDTH, WIDTH)
    ).eval()
    m = torch.randint(low, high + 1, (64, WIDTH))
    m[0, 0], m[0, 1] = low, high
    return module, (rows(64), m)


def test_a_mask_that_no_sample_needs_bounds_its_input() -> None:
    module, inputs = where_equal(40, 0, 16)
    model = import_module(module, Samples(inputs, None))
    graph = lower(model.graph, model.seen, LoweringOptions()).graph
    assert graph.value(graph.inputs[1]).high == 16
    given_arrays = arrays(graph, inputs)
    wanted = module(*inputs).detach().numpy()
    assert spread_error(NumpyEngine(graph)(given_arrays)["output"], wanted) < 0.05
    with pytest.raises(ValueError, match=r"must hold 0 to 16, got 0 to 40"):
        NumpyEngine(graph)({**given_arrays, "inputs_1": given_arrays["inputs_1"] // 16 * 40})


@pytest.mark.parametrize("number", [-100, -1])
def test_negative_numbers_of_a_mask_are_refused(number: int) -> None:
    module, inputs = where_equal(number, number, 16)
    said = rf"`.*\[:, 0\]` must hold whole numbers from 0 on, and sample 0 holds {number}; shift them in the loader"
    with pytest.raises(CalibrationError, match=said):
        import_module(module, Samples(inputs, None))


def test_negative_whole_numbers_that_become_real_are_refused() -> None:
    module = Of(lambda s, x: s.l(x.float()), l=nn.Linear(4, 4))
    with pytest.raises(CalibrationError, match="whole numbers from 0 on, and sample 0 holds -5; shift them"):
        import_module(module, Samples((torch.arange(64 * 4).reshape(64, 4) % 20 - 5,), None))


def test_what_has_only_the_shape_of_an_input_does_not_bound_it() -> None:
    module = Of(
        lambda s, x, m: s.l(x).masked_fill(torch.zeros_like(m).bool()[:, None], -1e9).softmax(-1),
        l=nn.Linear(WIDTH, WIDTH),
    )
    model = import_module(module, Samples((rows(64), torch.full((64, WIDTH), -7)), None))
    assert model.graph.folded == ()


@pytest.mark.parametrize("most", [10**9, 10**12])
def test_many_numbers_are_refused_where_something_computes_with_them(most: int) -> None:
    times = torch.arange(64) * (most // 63)
    unread = Of(lambda s, x, _: s.l(x).softmax(-1), l=nn.Linear(WIDTH, WIDTH))
    import_module(unread, Samples((rows(64), times), None))
    read = Of(lambda s, x, m: s.l(x).masked_fill((m > 5)[:, None, None], -1e9).softmax(-1), l=nn.Linear(WIDTH, WIDTH))
    with pytest.raises(ModelImportError, match=r"must hold numbers from 0 to 1,048,575 where anything but a table"):
        import_module(read, Samples((rows(64), times), None))


def float_mask(self: nn.Module, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (self.l(x) + (1 - mask) * -1e9).softmax(-1)


def partly(self: nn.Module, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (self.l(x) + torch.where(mask, -1e9, 0.5)[:, None]).softmax(-1)


def not_by_a_softmax(self: nn.Module, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return torch.tanh(self.l(x).masked_fill(mask[:, None], float("-inf")))


def with_a_logarithm(self: nn.Module, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return self.l(x).masked_fill(mask[:, None], -1e9).log_softmax(-1)


def filled_with_one(self: nn.Module, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return self.l(x).masked_fill(mask[:, None], 1.0)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (float_mask, "must be made of truth values or whole numbers, got real ones; make masks"),
        (partly, "must hold 0, and -inf or -10,000 and less; make masks of sizes"),
        (not_by_a_softmax, "must be read by a softmax alone; make masks"),
        (with_a_logarithm, "logarithm of shares must not have a mask"),
        (filled_with_one, r"must be filled with 0, or with -inf before a softmax, got 1\.0; make masks"),
    ],
)
def test_masks_that_integers_do_not_have_are_refused(function: Callable[..., torch.Tensor], said: str) -> None:
    torch.manual_seed(0)
    mask = torch.rand(64, WIDTH) < 0.5
    data = Samples((rows(64), mask.float()[:, None] if function is float_mask else mask), None)
    with pytest.raises(ModelImportError, match=said) as found:
        import_module(Of(function, l=nn.Linear(WIDTH, WIDTH)), data)
    assert found.value.fields["where"]


@pytest.mark.slow("imports transformers")
@pytest.mark.parametrize("kind", ["sdpa", pytest.param("eager", marks=pytest.mark.exhaustive)])
def test_a_bert_takes_an_attention_mask(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=12, attn_implementation=kind,
    )  # fmt: skip
    module = transformers.BertForSequenceClassification(config).eval()
    data = Samples((torch.randint(0, 50, (64, LENGTH)), kept(64).long()), None)
    model = import_module(module, data)
    graph = lower(model.graph, model.seen, LoweringOptions()).graph
    found = NumpyEngine(graph)(arrays(graph, data.inputs))["logits"]
    with torch.no_grad():
        real = module(*data.inputs).logits.numpy()
    assert spread_error(found, real) < 0.2
    tokens, mask = data.inputs
    other = torch.where(mask > 0, tokens, torch.randint(0, 50, tokens.shape))
    assert np.array_equal(NumpyEngine(graph)(arrays(graph, (other, mask)))["logits"], found)

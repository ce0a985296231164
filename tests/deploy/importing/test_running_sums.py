"""Row numbers that are computed of whole inputs, running sums among them: those of torch, in all executions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from torch import nn

from stoker.core.errors import ModelImportError
from stoker.deploy.comparing import spread_error
from stoker.deploy.engines.law import NumpyEngine
from stoker.deploy.engines.native.engine import CompiledEngine
from stoker.deploy.engines.onnx_engine import OnnxEngine
from stoker.deploy.hardware.host_inputs import device_inputs
from stoker.deploy.importing.quantising import import_module
from stoker.deploy.importing.samples import Samples
from stoker.deploy.ir.checking import checked
from stoker.deploy.ir.graph import IntegerGraph
from stoker.deploy.ir.host_tables import device_graph, tables_of
from stoker.deploy.lowering.lowering import LoweringOptions, lower
from stoker.deploy.package.folder import read_package, write_package
from tests.deploy import networks
from tests.deploy.graphs import numbers_for
from tests.deploy.importing.masked import Inputs
from tests.deploy.importing.test_masks import by_program
from tests.deploy.networks import Of

pytestmark = pytest.mark.integration
LENGTH, ROWS, IDS, PAD = 7, 20, 12, 1


def numbered() -> nn.Embedding:
    """A table of which a row is its number, which 8 bits hold exactly."""
    table = nn.Embedding(ROWS, 1)
    with torch.no_grad():
        table.weight.copy_(torch.arange(ROWS)[:, None])
    return table


def of(rows: Callable[..., torch.Tensor]) -> nn.Module:
    """A module whose results are row numbers as a table reads them."""
    return Of(lambda s, *inputs: s.e(rows(*inputs)), e=numbered()).eval()


def positions(ids: torch.Tensor) -> torch.Tensor:
    """Those of RoBERTa, in its words."""
    mask = ids.ne(PAD).int()
    return ((torch.cumsum(mask, dim=1).type_as(mask) + 0) * mask).long() + PAD


def of_a_mask(mask: torch.Tensor) -> torch.Tensor:
    """Those of OPT."""
    return (torch.cumsum(mask, dim=1) * mask - 1).long() + 2


def filled(mask: torch.Tensor) -> torch.Tensor:
    """Those of decoders: of what is masked, where the sum less one may be below 0, another number."""
    return (mask.long().cumsum(-1) - 1).masked_fill(mask == 0, 3)


def filled_in_place(mask: torch.Tensor) -> torch.Tensor:
    found = mask.long().cumsum(-1) - 1
    found.masked_fill_(mask == 0, 3)
    return found


def filled_by_another(ids: torch.Tensor) -> torch.Tensor:
    """The same of row numbers, compared twice."""
    return ((ids != PAD).cumsum(1) - 1).masked_fill(ids == PAD, 0)


def before(mask: torch.Tensor) -> torch.Tensor:
    """How many come before each."""
    return mask.cumsum(1) - mask.long()


def along_the_first(mask: torch.Tensor) -> torch.Tensor:
    """Over an axis that is not the last, of numbers up to 3."""
    return (mask[:, :, None] * torch.tensor([1, 3])).cumsum(1).clamp(max=ROWS - 1)


def gathered(ids: torch.Tensor) -> torch.Tensor:
    """Entries of a constant by positions, as RoBERTa has token types."""
    return torch.arange(ROWS).flip(0).expand(ids.shape[0], -1).gather(1, positions(ids))


def crossed(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """One number of two."""
    return first * 4 + second


def both(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """A row of two, where two truth values are 1."""
    return first.long() * second.long()


def cut(ids: torch.Tensor) -> torch.Tensor:
    return positions(ids)[:, 1:]


def tokens(count: int) -> Inputs:
    ids = torch.randint(2, IDS, (count, LENGTH))
    return (torch.where(torch.rand(count, LENGTH) < 0.3, PAD, ids),)


def masks(count: int) -> Inputs:
    return ((torch.rand(count, LENGTH) < 0.6).long(),)


def truths(count: int) -> Inputs:
    return (torch.rand(count, LENGTH) < 0.6,)


def two(count: int) -> Inputs:
    return torch.randint(0, 5, (count, 3)), torch.randint(0, 4, (count, 3))


FORMS: dict[str, tuple[Callable[..., torch.Tensor], Callable[[int], Inputs]]] = {
    "positions": (positions, tokens),
    "of a mask": (of_a_mask, masks),
    "filled": (filled, masks),
    "filled in place": (filled_in_place, masks),
    "filled by another": (filled_by_another, tokens),
    "before": (before, truths),
    "along the first": (along_the_first, truths),
    "gathered": (gathered, tokens),
    "crossed": (crossed, two),
    "both": (both, lambda count: truths(count) + truths(count)),
    "cut": (cut, tokens),
}


def imported(name: str) -> IntegerGraph:
    rows, make = FORMS[name]
    torch.manual_seed(0)
    model = import_module(of(rows), Samples(make(64), None))
    return lower(model.graph, model.seen, LoweringOptions()).graph


GRAPHS: dict[str, IntegerGraph] = {}


def graph_of(name: str) -> IntegerGraph:
    if name not in GRAPHS:
        GRAPHS[name] = imported(name)
    return GRAPHS[name]


@pytest.mark.parametrize("name", FORMS)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_row_numbers_are_those_of_torch(name: str, data: st.DataObject) -> None:
    """Whatever the inputs hold: all padding, none, padding before the others."""
    graph = graph_of(name)
    given_arrays = {
        port.name: data.draw(
            arrays_of.arrays(np.int64, (3, *port.shape), elements=st.integers(0, graph.value(port).high))
        )
        for port in graph.inputs
    }
    typed = {port.name: given_arrays[port.name].astype(port.dtype) for port in graph.inputs}
    wanted = FORMS[name][0](*map(torch.from_numpy, typed.values())).numpy()[..., None]
    found = NumpyEngine(graph)(typed)["output"]
    assert np.array_equal(np.rint(found), wanted)
    assert np.array_equal(OnnxEngine(graph)(typed)["output"], found)


@pytest.mark.slow("compiles a program for each")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in ("positions", "filled") else pytest.mark.exhaustive) for name in FORMS],
)
def test_all_executions_agree(name: str, tmp_path: Path) -> None:
    graph = graph_of(name)
    whole = numbers_for(graph, 9)
    (out,) = (port.value for port in graph.outputs)
    law = NumpyEngine(graph).integers(whole)[out]
    assert np.array_equal(CompiledEngine(graph, folder=tmp_path / "c").integers(whole)[out], law)
    assert np.array_equal(OnnxEngine(graph).integers(whole)[out], law)
    assert np.array_equal(by_program(graph, whole)[out], law.reshape(9, -1))
    write_package(tmp_path / "package", graph, "summed")
    assert read_package(tmp_path / "package").graph.values == graph.values
    least = 2 if any(port.dtype == "bool" for port in graph.inputs) else 1  # readers of 1 compute running sums as well
    assert f'"format": {least}'.encode() in (tmp_path / "package" / "manifest.json").read_bytes()


def test_a_table_on_the_host_is_read_there() -> None:
    torch.manual_seed(0)
    module = Of(lambda s, x: s.l(s.e(positions(x)).squeeze(-1)), e=numbered(), l=nn.Linear(LENGTH, 3)).eval()
    model = import_module(module, Samples(tokens(64), None))
    graph = lower(model.graph, model.seen, LoweringOptions()).graph
    (table,) = tables_of(graph)
    assert table.chip_bytes == 0
    device = checked(device_graph(graph, [table.layer]))
    whole = numbers_for(graph, 5)
    (law,) = NumpyEngine(graph).integers(whole).values()
    (found,) = NumpyEngine(device).integers(device_inputs(graph, [table.layer], whole)).values()
    assert np.array_equal(found, law)


def refusing(said: str, rows: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> None:
    with pytest.raises(ModelImportError, match=said) as found:
        import_module(of(rows), Samples(inputs, None))
    assert str(found.value.fields["where"]).partition(":")[0] in (__file__, networks.__file__)


def test_what_may_be_past_a_table_is_refused() -> None:
    """By sizes: samples of this shape may count more than these do."""
    ids = torch.full((64, ROWS), PAD)
    ids[:, :3] = 5
    refusing(
        r"must be rows of the table, 0 to 19, and those of inputs of this shape go from 1 to 21; give", positions, ids
    )
    refusing("go from -1 to 6; give shorter", lambda x: x.ne(PAD).cumsum(1) - 1, ids[:, :LENGTH])


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (lambda x: x.cumsum(0), "a running sum must be of whole numbers from 0 on, along another axis than the batch"),
        (lambda x: (x - 5).abs().sub(3).cumsum(1), "a running sum must be of whole numbers from 0 on"),
        (lambda x: (x * 900).cumsum(1), "a running sum must be at most 65,535, and may be"),
        (lambda x: torch.cumprod(x, 1), "cumprod.*not among the operations"),
    ],
)
def test_sums_that_integers_do_not_have_are_refused(rows: Callable[..., torch.Tensor], said: str) -> None:
    torch.manual_seed(0)
    refusing(said, rows, torch.randint(0, IDS, (64, LENGTH)))


def test_numbers_that_are_alike_for_all_inputs_are_a_constant() -> None:
    """Token types of RoBERTa are such; what is larger than 1 was taken for 1."""
    torch.manual_seed(0)
    module = Of(lambda s, x: s.e(torch.zeros_like(x) + 5) + s.f(x) * (torch.zeros_like(x) + 3)[..., None],
                e=numbered(), f=numbered()).eval()  # fmt: skip
    model = import_module(module, Samples((torch.arange(64 * 4).reshape(64, 4) % ROWS,), None))
    graph = lower(model.graph, model.seen, LoweringOptions()).graph
    x = np.arange(ROWS).reshape(5, 4)
    found = NumpyEngine(graph)({graph.inputs[0].name: x})["output"]
    assert abs(found[..., 0] - (5 + 3 * x)).max() < 0.5


def tiny(transformers: Any, kind: str) -> nn.Module:
    sizes = {
        "vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64,
        "max_position_embeddings": LENGTH + 2, "pad_token_id": PAD,
    }  # fmt: skip
    config = getattr(transformers, f"{kind}Config")(**sizes)
    return getattr(transformers, f"{kind}ForSequenceClassification")(config).eval()


@pytest.mark.slow("imports transformers")
@pytest.mark.parametrize(
    "kind",
    ["Roberta", *(pytest.param(each, marks=pytest.mark.exhaustive) for each in ("XLMRoberta", "MPNet", "Camembert"))],
)
def test_a_roberta_computes_its_positions(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    module = tiny(transformers, kind)
    with torch.no_grad():
        for each in module.parameters():  # scores that are told apart
            each.mul_(3 if each.ndim > 1 else 1)
    kept = torch.arange(LENGTH) < torch.randint(1, LENGTH + 1, (64, 1))
    ids = torch.where(kept, torch.randint(2, 50, (64, LENGTH)), PAD)
    data = Samples((ids, kept.long()), None)
    model = import_module(module, data)
    graph = lower(model.graph, model.seen, LoweringOptions()).graph
    given_arrays = {port.name: each.numpy() for port, each in zip(graph.inputs, data.inputs, strict=True)}
    found = NumpyEngine(graph)(given_arrays)["logits"]
    with torch.no_grad():
        assert spread_error(found, module(*data.inputs).logits.numpy()) < 0.2
    assert np.array_equal(OnnxEngine(graph)(given_arrays)["logits"], found)

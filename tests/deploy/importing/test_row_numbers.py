"""Integer inputs whose columns are rows of tables of different sizes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from stoker.core.errors import CalibrationError, ModelImportError
from stoker.deploy.comparing import spread_error
from stoker.deploy.engines.law import NumpyEngine
from stoker.deploy.engines.native.engine import CompiledEngine
from stoker.deploy.engines.onnx_engine import OnnxEngine
from stoker.deploy.floating.operations import (
    FloatConstant,
    FloatEmbedding,
    FloatGraph,
    FloatInput,
    FloatLookup,
    FloatSlice,
    FloatSum,
)
from stoker.deploy.floating.row_numbers import rows_read
from stoker.deploy.hardware.designing import chosen_foldings, design
from stoker.deploy.hardware.engine_updates import shared_inputs
from stoker.deploy.hardware.host_inputs import device_inputs
from stoker.deploy.hardware.verification import random_samples
from stoker.deploy.importing.quantising import import_module, quantise
from stoker.deploy.importing.samples import Samples
from stoker.deploy.ir.checking import checked
from stoker.deploy.ir.graph import IntegerGraph
from stoker.deploy.ir.host_tables import device_graph, tables_of
from stoker.deploy.ir.values import IntegerValue, ModelPort
from stoker.deploy.package.folder import read_package, write_package
from tests.deploy.networks import Of
from tests.deploy.rtl.engine.test_compiling import LARGE, differing

pytestmark = pytest.mark.integration
ROWS = (100, 10, 7)
"""Of the tables."""
READ = (100, 7, 7)
"""Numbers that each column may have: two tables read the second."""


def columns(count: int, *rows: int) -> torch.Tensor:
    found = torch.stack([torch.randint(0, each, (count,)) for each in rows], 1)
    found[0], found[-1] = torch.tensor(rows) - 1, 0
    return found


def wide() -> nn.Module:
    """Tables of single columns and a bag of two."""
    return Of(
        lambda s, x: s.l(torch.cat([s.a(x[:, 0]), s.b(x[:, 1]), s.c(x[:, 1:3])], 1)),
        a=nn.Embedding(ROWS[0], 8), b=nn.Embedding(ROWS[1], 4), c=nn.EmbeddingBag(ROWS[2], 4), l=nn.Linear(16, 3),
    ).eval()  # fmt: skip


def imported(module: nn.Module, x: torch.Tensor) -> IntegerGraph:
    torch.manual_seed(0)
    return quantise(module, Samples((x,), None)).graph


def test_each_column_may_hold_the_rows_of_its_table_and_engines_agree(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, x = wide(), columns(128, *READ, 10**9)
    graph = imported(module, x)
    value = graph.value(graph.inputs[0])
    assert value.highs == (99, 6, 6, -1)  # of two tables the smaller one bounds a column, and nothing reads the last
    assert (value.bits, value.high) == (7, 99)
    name = graph.inputs[0].name
    found = NumpyEngine(graph)({name: x.numpy()})
    with torch.no_grad():
        assert spread_error(found["output"], module(x).numpy()) < 0.05
    for engine in (CompiledEngine(graph, folder=tmp_path), OnnxEngine(graph)):
        assert np.array_equal(engine({name: x.numpy()})["output"], found["output"])
    for at, most in ((0, 99), (2, 6)):
        for wrong in (most + 1, -1):
            numbers = x.numpy().copy()
            numbers[5, at] = wrong
            for engine in (NumpyEngine(graph), CompiledEngine(graph, folder=tmp_path)):
                with pytest.raises(ValueError, match=rf"`{name}\[:, {at}\]` must hold 0 to {most}, got {wrong}"):
                    engine({name: numbers})


def test_a_package_keeps_them(tmp_path: Path) -> None:
    graph = imported(wide(), columns(64, *READ))
    write_package(tmp_path / "made", graph, "wide")
    again = read_package(tmp_path / "made").graph
    assert again.values == graph.values
    assert b'"highs": []' not in (tmp_path / "made" / "graph.json").read_bytes()  # packages without are as before


def test_tables_on_the_host_are_sent_their_rows() -> None:
    graph = imported(wide(), columns(64, *READ))
    names = [each.layer for each in tables_of(graph)]
    inputs = random_samples(graph, 50, 0)
    assert [int(each.max()) for each in next(iter(inputs.values())).T] <= [99, 6, 6]
    (law,) = NumpyEngine(graph).integers(inputs).values()
    device = checked(device_graph(graph, names))
    (found,) = NumpyEngine(device).integers(device_inputs(graph, names, inputs)).values()
    assert np.array_equal(found, law)


def test_hardware_has_columns_in_an_engine_or_on_the_host(tmp_path: Path) -> None:
    graph = imported(wide(), columns(64, *READ))
    assert differing(graph, LARGE, 8) == 0
    names = [each.layer for each in tables_of(graph)]
    made = design(graph, chosen_foldings(device_graph(graph, names)), tmp_path / "design", host_tables=names)
    assert [each.on_host for each in made.tables] == [True] * 3


@pytest.mark.parametrize(
    "function",
    [
        lambda s, x: torch.cat([e(i) for e, i in zip((s.a, s.b), x.unbind(1), strict=True)], 1),
        lambda s, x: torch.cat([s.a(x.t()[0]), s.b(x.roll(1, 1)[:, 0])], 1),
        lambda s, x: torch.cat([s.a(x.reshape(-1, 2, 1)[:, 0, 0]), s.b(torch.cat([x, x], 1)[:, 3])], 1),
    ],
)
def test_columns_are_followed_through_moves(function: Callable[[Of, torch.Tensor], torch.Tensor]) -> None:
    torch.manual_seed(0)
    module = Of(lambda s, x: s.l(function(s, x)), a=nn.Embedding(50, 8), b=nn.Embedding(5, 4), l=nn.Linear(12, 3))
    graph = imported(module.eval(), columns(64, 50, 5))
    assert graph.value(graph.inputs[0]).highs == (49, 4)


def test_concatenated_inputs_have_one_width() -> None:
    torch.manual_seed(0)
    module = Of(
        lambda s, x, y: s.l(torch.cat([s.a(torch.cat([x, y], 1)).flatten(1), s.b(x[:, 0])], 1)),
        a=nn.Embedding(50, 4), b=nn.Embedding(5, 4), l=nn.Linear(12, 3),
    ).eval()  # fmt: skip
    x, y = columns(64, 5), columns(64, 50)
    graph = quantise(module, Samples((x, y), None)).graph
    assert [(graph.value(port).high, graph.value(port).bits) for port in graph.inputs] == [(4, 6), (49, 6)]


def test_columns_of_several_inputs_are_told_apart_after_they_were_joined() -> None:
    torch.manual_seed(0)
    module = Of(
        lambda s, x, y: s.l(torch.cat([s.a((both := torch.cat([x, y], 1))[:, 0]), s.b(both[:, 1])], 1)),
        a=nn.Embedding(5, 4), b=nn.Embedding(50, 4), l=nn.Linear(8, 3),
    ).eval()  # fmt: skip
    graph = quantise(module, Samples((columns(64, 5), columns(64, 50)), None)).graph
    assert [graph.value(port).high for port in graph.inputs] == [4, 49]


@pytest.mark.parametrize(("at", "wrong"), [(0, 100), (1, 7), (2, -1)])
@pytest.mark.parametrize("sample", [0, 1, 3])
def test_samples_that_are_no_rows_are_named(at: int, wrong: int, sample: int) -> None:
    """Also where torch refuses the number, and whatever the sample is for."""
    x = columns(64, *READ)
    x[sample, at] = wrong
    rows, table = READ[at], "acc"[at]
    with pytest.raises(CalibrationError) as refused:
        import_module(wide(), Samples((x,), None))
    assert refused.value.fields["value"] in str(refused.value)
    for said in (f"[:, {at}]` must hold row numbers of `{table}`", f"{rows} rows, 0 to {rows - 1}", f"holds {wrong};"):
        assert said in str(refused.value)


class Offsets(nn.Module):
    """One table for all columns, as factorisation machines and their kin have it."""

    def __init__(self, *rows: int) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(sum(rows), 6), nn.Linear(6 * len(rows), 3)
        self.offsets = np.array((0, *np.cumsum(rows)[:-1]), dtype=np.int64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(x + x.new_tensor(self.offsets).unsqueeze(0)).flatten(1))


def test_offsets_by_column_become_a_table_for_each(tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, x = Offsets(*ROWS).eval(), columns(128, *ROWS)
    found = quantise(module, Samples((x,), None))
    graph = found.graph
    assert graph.value(graph.inputs[0]).highs == (99, 9, 6)
    assert [each.rows for each in tables_of(graph)] == list(ROWS)
    assert found.record.weight_bits == 8 * (117 * 6 + 18 * 3)
    arrays = {graph.inputs[0].name: x.numpy()}
    law = NumpyEngine(graph)(arrays)["output"]
    with torch.no_grad():
        assert spread_error(law, module(x).numpy()) < 0.05
    assert np.array_equal(CompiledEngine(graph, folder=tmp_path)(arrays)["output"], law)
    x[3, 1] = 10  # a row of the next column's, which torch takes without a word
    with pytest.raises(CalibrationError, match=r"\[:, 1\]` must hold row numbers of `table`, which has 10 rows"):
        import_module(module, Samples((x,), None))


def test_one_offset_for_one_column() -> None:
    torch.manual_seed(0)
    module = Of(lambda s, x: s.l(s.a(x + 1).flatten(1)), a=nn.Embedding(8, 4), l=nn.Linear(4, 3)).eval()
    x = columns(64, 7)
    graph = imported(module, x)
    assert graph.value(graph.inputs[0]).high == 6
    with torch.no_grad():
        found = NumpyEngine(graph)({graph.inputs[0].name: x.numpy()})["output"]
        assert spread_error(found, module(x).numpy()) < 0.05


class Before(Offsets):
    """The same, the other way round."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.table(torch.tensor(self.offsets) + x).flatten(1))


def test_offsets_may_come_first() -> None:
    torch.manual_seed(0)
    graph = import_module(Before(*ROWS), Samples((columns(64, *ROWS),), None)).graph
    lookups = [each for each in graph.operations if isinstance(each, FloatEmbedding)]
    assert [len(each.table) for each in lookups] == list(ROWS)
    assert not any(isinstance(each, (FloatSum, FloatConstant)) for each in graph.operations)


def test_one_offset_for_numbers_without_columns() -> None:
    torch.manual_seed(0)
    module = Of(lambda s, x: s.l(s.a(x + 1)), a=nn.Embedding(8, 4), l=nn.Linear(4, 3)).eval()
    x = columns(64, 7)[:, 0]
    graph = imported(module, x)
    assert graph.value(graph.inputs[0]).high == 6
    with torch.no_grad():
        found = NumpyEngine(graph)({graph.inputs[0].name: x.numpy()})["output"]
        assert spread_error(found, module(x).numpy()) < 0.05


@pytest.mark.parametrize("function", [lambda x: x - 1, lambda x: x + x])
def test_computed_row_numbers_are_refused(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    module = Of(lambda s, x: s.l(s.a(function(x)).flatten(1)), a=nn.Embedding(300, 8), l=nn.Linear(16, 3)).eval()
    with pytest.raises(ModelImportError, match="row numbers must be those of an input, as they are, moved"):
        import_module(module, Samples((columns(64, 100, 10),), None))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"highs": (99, 6)}, "must have 3 numbers, got 2"),
        ({"highs": (99, 6, 100)}, "must be -1 to 99"),
        ({"highs": (99, 7, 6)}, "must hold 0 to 7"),
        ({"highs": ()}, "must be in|must hold"),
    ],
)
def test_graphs_that_would_read_past_a_table_are_not_sound(changes: dict[str, tuple[int, ...]], said: str) -> None:
    graph = imported(wide(), columns(64, *READ))
    port = graph.inputs[0]
    old = graph.value(port)
    fields = {name: getattr(old, name) for name in old.__struct_fields__}
    values = {**graph.values, port.value: IntegerValue(**fields | changes)}
    fields = {name: getattr(graph, name) for name in ("inputs", "outputs", "operations", "constants")}
    with pytest.raises(ValueError, match=said):
        checked(IntegerGraph(values=values, **fields))


def masked_by_one() -> nn.Module:
    """One table for joined columns, and a mask of each of the first ones."""

    def function(s: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        scores = s.l(s.e(torch.cat([a, b], 1))).squeeze(-1)[:, :4]
        return scores.masked_fill(~(a != 0), float("-inf")).softmax(-1)

    return Of(function, e=nn.Embedding(100, 8), l=nn.Linear(8, 1)).eval()


def test_a_mask_takes_all_row_numbers_of_a_table_that_joined_inputs_are_read_by() -> None:
    torch.manual_seed(0)
    module = masked_by_one()
    few = tuple(torch.randint(0, 30, (64, 4)) for _ in range(2))
    graph = quantise(module, Samples(few, None)).graph
    assert graph.value(graph.inputs[0]).high == 99
    more = tuple(torch.randint(0, 100, (64, 4)) for _ in range(2))
    names = [port.name for port in graph.inputs]
    found = NumpyEngine(graph)({name: each.numpy() for name, each in zip(names, more, strict=True)})["output"]
    assert np.array_equal(found > 0, more[0].numpy() != 0)
    with torch.no_grad():
        assert spread_error(found, module(*more).numpy()) < 0.5  # scores of rows that samples lack may saturate


def test_places_that_a_mask_reads_hold_no_more_numbers_than_it_has() -> None:
    table = np.zeros((100, 4))
    graph = FloatGraph(
        inputs=(FloatInput(name="x", shape=(-1, 3), whole=True, count=30),),
        outputs={"e": "e", "m": "m"},
        operations=(
            FloatEmbedding(name="e", sources=("x",), layer="", where="", table=table, bag=""),
            FloatSlice(name="part", sources=("x",), layer="", where="", axis=1, start=0, stop=1),
            FloatLookup(name="m", sources=("part",), layer="", where="", table=np.arange(30)),
        ),
        shapes={},
    )
    assert rows_read(graph)["x"].rows.tolist() == [30, 100, 100]


def test_weights_of_a_bag_are_no_row_numbers() -> None:
    def function(s: Any, x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding_bag(x, s.e.weight, per_sample_weights=m.to(torch.float32), mode="sum")

    data = Samples((torch.randint(0, 9, (64, 4)), torch.randint(0, 2, (64, 4))), None)
    with pytest.raises(ModelImportError, match="a bag must be a sum or a mean without weights by sample"):
        import_module(Of(function, e=nn.Embedding(9, 4)), data)


def test_models_that_change_on_an_engine_are_given_rows_of_both() -> None:
    def graph(*highs: int) -> IntegerGraph:
        return wide_input(6, highs)

    given = np.array([[6, 6, 6], [-1, 2, 0]], np.int32)
    found = shared_inputs(graph(6, 3, -1), graph(2, 5, 4), {"x": given})
    for each in found:
        assert each["x"].tolist() == [[2, 3, 0], [0, 2, 0]]


def wide_input(high: int, highs: tuple[int, ...]) -> IntegerGraph:
    value = IntegerValue(
        name="x", shape=(3,), bits=3, signed=False, scale=1.0, zero_point=0, low=0, high=high, highs=highs
    )
    port = ModelPort(name="x", value="x", dtype="int64", shape=(3,), order=(0,))
    return IntegerGraph(inputs=(port,), outputs=(), values={"x": value}, operations=(), constants={})

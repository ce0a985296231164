"""Plans of splits: what is refused, pairs, a choice that never sends more than DDP; shares and norms."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from stoker.perf.communication.methods import table_bytes as priced_table_bytes
from stoker.train.splitting.norms import joined
from stoker.train.splitting.planning import (
    check,
    chosen,
    column_elements,
    pair_elements,
    pairs_of,
    ring_elements,
    table_bytes,
)  # fmt: skip
from stoker.train.splitting.samples import shares_of


def net(*widths: int, table: int = 40) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Embedding(table, widths[0])]
    for one, other in itertools.pairwise(widths):
        layers += [nn.Linear(one, other), nn.ReLU()]
    return nn.Sequential(*layers)


@given(st.lists(st.integers(1, 300), min_size=2, max_size=6), st.integers(1, 9), st.integers(0, 200))
def test_what_is_chosen_sends_less_than_ddp_and_can_be_done(widths: list[int], ranks: int, rows: int) -> None:
    model = net(*widths)
    plan = chosen(model, ranks, rows)
    check(model, plan, ranks)
    pairs = pairs_of(model, plan)
    for path, kind in plan.items():
        layer = model.get_submodule(path)
        if isinstance(layer, nn.Embedding):
            assert table_bytes(ranks, rows, widths[0]) < 4 * ring_elements(ranks, layer.weight.numel())
        elif isinstance(layer, nn.Linear) and path not in pairs:
            m, n = (layer.in_features, layer.out_features)
            m, n = (m, n) if kind == "column" else (n, m)
            assert column_elements(ranks, rows, m, n) < ring_elements(ranks, m * n)
    assert len({id(pair) for pair in pairs.values()}) * 2 == len(pairs)
    if ranks == 1:
        assert not plan


def test_a_wide_head_becomes_a_pair_and_a_table_of_many_rows_is_split() -> None:
    model = net(16, 4096, 16, table=100_000)
    assert chosen(model, 4, 32) == {"0": "table", "1": "column", "3": "row"}
    assert pair_elements(4, 32, 16, 16) < column_elements(4, 32, 16, 4096)


def test_bytes_of_a_table_are_those_that_the_planner_of_exchanges_charges() -> None:
    assert table_bytes(4, 512, 16) == priced_table_bytes(4, 512, 16)


def test_layers_are_a_pair_only_next_to_each_other_with_activation_functions_between() -> None:
    plan = {"0": "column", "2": "row"}
    assert set(pairs_of(nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4)), plan)) == {"0", "2"}
    assert not pairs_of(nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 4)), plan)
    assert not pairs_of(nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4)), {"0": "row", "2": "column"})


@pytest.mark.parametrize(
    ("plan", "rule"),
    [
        ({"1": "columns"}, "must name methods among column, row, table, got 'columns' for `1`"),
        ({"9": "row"}, "`9` must be a Linear inside the model for `row`, got no module of that path"),
        ({"0": "row"}, "`0` must be a Linear inside the model for `row`, got Embedding"),
        ({"1": "table"}, "`1` must be a Embedding inside the model for `table`, got Linear"),
        ({"3": "column"}, r"`3` must have at least as many outputs as there are ranks \(4\), got 2"),
        ({"0": "table", "1": "column", "3": "row", "5": "row"}, "at least as many inputs"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused(plan: dict[str, str], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        check(net(6, 5, 2, 3), plan, 4)  # type: ignore[arg-type]


def test_what_other_modules_hold_or_hooks_see_is_not_split() -> None:
    tied = net(4, 40)
    tied[1].weight = tied[0].weight
    with pytest.raises(ValueError, match="`0` must not share its weights"):
        check(tied, {"0": "table"}, 2)
    hooked = net(4, 40)
    hooked[1].register_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match="`1` must be without hooks"):
        check(hooked, {"1": "column"}, 2)
    with pytest.raises(ValueError, match="must be without `max_norm`"):
        check(nn.Sequential(nn.Embedding(9, 2, max_norm=1.0), nn.Linear(2, 2)), {"0": "table"}, 2)


def test_ddp_keeps_a_weight() -> None:
    with pytest.raises(ValueError, match="must leave DDP a weight"):
        check(nn.Sequential(nn.Linear(9, 9)), {"0": "column"}, 2)
    assert chosen(nn.Sequential(nn.Linear(900, 900)), 2, 1) == {}


@given(st.integers(1, 1000), st.integers(1, 50))
def test_shares_cover_a_width_as_equally_as_can_be(width: int, ranks: int) -> None:
    shares = shares_of(width, ranks)
    assert sum(shares) == width
    assert max(shares) - min(shares) <= 1


numbers = st.floats(0, 1e30)


@given(st.lists(numbers, min_size=1, max_size=6), st.sampled_from([1.0, 2.0, 3.0, math.inf]))
def test_norms_of_parts_join_to_that_of_the_whole(parts: list[float], order: float) -> None:
    found = joined(parts[0], parts[1:], order)
    unit = max(parts) or 1.0
    assert found / unit == pytest.approx(np.linalg.norm(np.array(parts) / unit, order), rel=1e-9, abs=1e-12)
    assert math.isnan(joined(math.nan, parts, order))
    assert joined(math.inf, parts, order) == math.inf

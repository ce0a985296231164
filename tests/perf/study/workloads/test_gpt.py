import pytest

from stoker.perf.communication.sweeps import all_reduce
from stoker.perf.study.tables.rows import published
from stoker.perf.study.workloads.gpt import TERMS, ModelPlan, at_spec, plan_of

ROWS = [row for row in published() if row.source == "vtrain-single"]
NAMES = [term.name for term in TERMS]


def row_of(sharding: str, width: int = 2048, micro_batches: int = 4):
    return next(
        row
        for row in ROWS
        if row.sharding == sharding
        and row.model == f"GPT L24 h{width} a16"
        and row.batch_per_gpu == 2
        and row.accumulation == micro_batches
    )


def test_every_row_says_how_it_is_cut() -> None:
    for row in ROWS:
        plan = plan_of(row)
        assert plan.tensor * plan.data * plan.pipeline == row.gpus
        assert row.params == 12 * plan.layers * plan.width**2


def test_the_work_of_one_row_by_hand() -> None:
    row = row_of("TP2 DP2 PP2")
    assert plan_of(row) == ModelPlan(24, 2048, 2, 2, 2)
    times = dict(zip(NAMES, at_spec(row), strict=True))
    tokens, passes, layers = 2048, 4 + 2 - 1, 12
    assert times["matrix products"] == pytest.approx(8 * 12 * 2048**2 * tokens * layers * passes / 2 / 312e12)
    exchange = all_reduce("A100", 2, 2 * tokens * 2048)
    assert times["exchange of tensors"] == pytest.approx(6 * exchange * layers * passes)
    weights = (12 * 12 * 2048**2 + 51_200 * 2048) / 2
    assert times["exchange of gradients"] == pytest.approx(all_reduce("A100", 2, 2 * weights))


def test_ranks_that_are_not_there_cost_nothing() -> None:
    times = dict(zip(NAMES, at_spec(row_of("TP1 DP2 PP1")), strict=True))
    assert times["exchange of tensors"] == times["exchange of stages"] == times["launching of split layers"] == 0
    assert times["exchange of gradients"] > 0


def test_a_row_of_another_table_is_refused() -> None:
    other = next(row for row in published() if row.source == "llm-foundry")
    with pytest.raises(ValueError, match="must be one of vtrain-single, got MPT-70b / FULL_SHARD"):
        plan_of(other)

"""Layers in stages on real ranks over gloo, against plain DDP; and what one rank alone does with them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.train.answers import answers_of
from tests.warm import programs

pytestmark = pytest.mark.integration
CASES = ("adamw", "clipped")
OTHERS = ("alone", "named", "refused")
KINDS = ("sgd", "frozen", "closed", "hooked", "fused", "foreach", "adafactor")
LOSSES, WEIGHTS = 1e-5, 1e-4
"""Largest differences to DDP: relative of losses, absolute of weights and states."""
NOISE = 3.0
"""Times the difference that the order of sums alone makes."""


def answers(ranks: int, cases: tuple[str, ...]) -> list[dict[str, Any]]:
    return answers_of("staging.programs.stage_ranks", ranks, ",".join(cases))


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    return answers(2, (*CASES, *OTHERS))


def check_like_ddp(found: list[dict[str, Any]], cases: tuple[str, ...]) -> None:
    for name in cases:
        for rank, each in enumerate(found):
            assert each[name]["losses"] <= LOSSES, (name, rank, each[name])
            assert each[name]["resumed"] <= 10 * LOSSES, (name, rank, each[name])
            for what in ("weights", "state"):
                assert each[name][what] <= WEIGHTS, (name, rank, what, each[name])
            for what in ("names", "kind", "draws"):
                assert each[name][what], (name, rank, what)


@pytest.mark.slow("ranks train each case five times")
def test_losses_norms_weights_states_draws_and_names_are_those_of_ddp(found: list[dict[str, Any]]) -> None:
    check_like_ddp(found, CASES)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("ranks", "cases"), [(2, KINDS), (3, ("adamw", "clipped", "frozen")), (4, ("adamw", "sgd", "clipped"))], ids=str
)
@pytest.mark.slow("ranks train each case five times")
def test_every_optimizer_and_number_of_ranks(ranks: int, cases: tuple[str, ...]) -> None:
    check_like_ddp(answers(ranks, cases), cases)


@pytest.mark.exhaustive
@pytest.mark.slow("ranks train for two times 20 steps")
@pytest.mark.parametrize("ranks", [2, 4])
def test_twenty_losses_are_those_of_ddp(ranks: int) -> None:
    for each in answers(ranks, ("twenty",)):
        assert each["twenty"].pop("Net") <= LOSSES, each
        assert all(far <= 1e-9 for far in each["twenty"].values()), each


@pytest.mark.exhaustive
@pytest.mark.slow("ranks train for seven times 20 steps")
def test_in_single_precision_losses_are_as_far_from_those_of_ddp_as_another_order_of_sums_makes_them() -> None:
    for found in answers_of("staging.programs.noise", 4).values():
        stages = found.pop("stages")
        assert 0.0 < stages <= NOISE * max(found.values()), (stages, found)


@pytest.mark.exhaustive
@pytest.mark.slow("ranks count each operation")
@pytest.mark.parametrize("ranks", [2, 4])
def test_counted_peaks_are_those_predicted(ranks: int) -> None:
    for each in answers(ranks, ("peaks",)):
        assert all(abs(far) <= 0.03 for far in each["peaks"]), each


@pytest.mark.exhaustive
@pytest.mark.slow("ranks train in bfloat16")
def test_a_step_that_a_scaler_leaves_out_is_left_out_on_all_ranks() -> None:
    for each in answers(2, ("scaled",)):
        # bfloat16 makes of a difference in the last bit of 32 one in the last bit of 16.
        assert each["scaled"]["losses"] <= 2e-3, each


def test_a_rank_holds_its_share_of_weights_and_states(found: list[dict[str, Any]]) -> None:
    # The table is in the first and in the last stage.
    for name in CASES:
        assert sum(rank[name]["held"] for rank in found) <= 1.33, name
        assert max(rank[name]["states"] for rank in found) <= 0.67, name


def test_rank_0_alone_saves_copies_and_evaluates_beside_a_slow_rank(found: list[dict[str, Any]]) -> None:
    alone = found[0]["alone"]
    for what in ("weights", "state", "seen", "through", "inner", "inference", "copy", "file", "average"):
        assert alone[what] <= 1e-5, (what, alone[what])
    assert alone["trains"].startswith("`blocks.3.norm.weight` must be used for training by calling")
    assert alone["writes"].startswith("`blocks.5.wide.weight` must be changed by an optimizer or load_state_dict alone")
    assert all(rank["alone"]["after"] <= LOSSES for rank in found)


def test_skips_names_inner_losses_gradients_of_inputs_and_uneven_batches(found: list[dict[str, Any]]) -> None:
    assert all(rank["named"] <= LOSSES for rank in found)


@pytest.mark.exhaustive
@pytest.mark.slow("ranks train twice")
def test_a_server_that_looks_at_no_version_gives_a_state_of_two_steps() -> None:
    naive = answers(2, ("naive",))[0]["naive"]
    assert naive["weights"] > 1e-4
    assert naive["state"] > 1e-4


@pytest.mark.exhaustive
@pytest.mark.slow("ranks train three times")
def test_all_ranks_evaluate_together_and_not_equally_often() -> None:
    assert all(each <= 1e-5 for rank in answers(2, ("together",)) for each in rank["together"])


def test_what_cannot_be_in_stages_is_refused_on_all_ranks_before_anything_changes(found: list[dict[str, Any]]) -> None:
    rules = {
        "unused": "`find_unused_parameters` must not be set",
        "optimizer": "`Own` must update each weight by its own gradients",
        "hook": "`blocks.0` must be without hooks",
        "gradient": "`blocks.0.wide.weight` must be without hooks",
        "compiled": "`module` must not be compiled",
        "few": "`cuts` must name 1 modules for 2 ranks, got 0",
        "path": "`blocks.9` must be a module inside the model",
        "counter": "`calls` must not be changed by a forward pass",
        "branch": "`Odd` must be one graph that torch.export captures",
        "python": "`Odd` must draw by torch alone",
        "function": "`Straight` must not be used in a model",
        "checkpoint": "`saved_tensors_hooks` must not be used in a model",
        "older": "`CheckpointFunction` must not be used in a model",
        "idle": "`more.weight` must be used in a forward pass",
        "order": "`cuts` must leave operations for each stage, got none for stage 0",
        "argument": "`Odd` must be called with tensors, numbers and text",
        "buffers": "`blocks.0.norm.num_batches_tracked` must be that of the first rank's batches",
        "deepcopy_ddp": "`DistributedDataParallel` must not be copied",
        "save_ddp": "`DistributedDataParallel` must not be pickled",
        "hook_of_ddp": "`register_comm_hook` must not be used",
        "join": "`join` must not be used",
        "twice": "`backward` must be called once",
        "late": "`Own` must update each weight by its own gradients",
    }
    for rank in found:
        assert rank["refused"].keys() == rules.keys()
        for name, rule in rules.items():
            assert rank["refused"][name].startswith(rule), (name, rank["refused"][name])


@pytest.mark.exhaustive
@pytest.mark.slow("ranks wait for each other's mistakes")
def test_what_ranks_do_differently_is_an_error_on_all() -> None:
    for rank in answers(2, ("different",)):
        assert "`rank 1` must do what rank 0 does where layers are in stages" in rank["different"][0]
        assert "`rank 1` must call the module as rank 0 does" in rank["different"][1]


@pytest.mark.exhaustive
@pytest.mark.slow("ranks train four ways")
def test_files_load_under_each_other_choice() -> None:
    assert all(each["over"] <= WEIGHTS for each in answers(2, ("over",)))


@pytest.mark.exhaustive
@pytest.mark.slow("three programs import torch")
@pytest.mark.parametrize("sent", ["SIGKILL", "SIGSTOP"])
def test_the_others_name_a_lost_rank_and_its_stage(sent: str, tmp_path: Path) -> None:
    program = Path(__file__).parent / "programs" / "lost.py"
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(programs.ROOT)}
    running = [
        programs.Program(
            [sys.executable, str(program), str(rank), str(tmp_path), sent],
            env=env, cwd=tmp_path, stdout=programs.PIPE, stderr=programs.PIPE, text=True,
        )
        for rank in range(3)
    ]  # fmt: skip
    try:
        told = {rank: running[rank].communicate(timeout=60)[0] for rank in (0, 2)}
    finally:
        running[1].kill()
        running[1].communicate(timeout=10)
    lost_s = (tmp_path / "lost").stat().st_mtime
    for rank, words in told.items():
        at_s, _, line = words.partition(" ")
        assert "`rank 1`" in line, (rank, words)
        assert "stage 1" in line, (rank, words)
        assert float(at_s) - lost_s < 12, (rank, words)

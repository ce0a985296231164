"""Optimizer states in shares on real ranks over gloo, against plain DDP."""

from __future__ import annotations

from typing import Any

import pytest

from tests.train.answers import answers_of

pytestmark = pytest.mark.integration
CASES = ("clipped", "scaled")
OTHERS = ("slow", "between", "refused", "raised", "different", "kept")
KINDS = (
    "adamw", "closed", "hooked", "fused", "foreach", "sgd", "still", "adagrad", "rprop", "adafactor", "amsgrad",
    "grown",
)  # fmt: skip


def answers(ranks: int, cases: tuple[str, ...]) -> list[dict[str, Any]]:
    return answers_of("sharding.programs.state_ranks", ranks, ",".join(cases))


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    return answers(2, (*CASES, *OTHERS))


def check_equal(found: list[dict[str, Any]], cases: tuple[str, ...]) -> None:
    """All that a case compares is bit for bit that of DDP."""
    for name in cases:
        for rank, each in enumerate(found):
            for what in ("losses", "weights", "state", "resumed", "undone", "after"):
                assert each[name].get(what, True), (name, rank, what)


@pytest.mark.slow("ranks train each case twice")
def test_losses_norms_weights_and_states_are_those_of_ddp_to_the_last_bit(found: list[dict[str, Any]]) -> None:
    check_equal(found, CASES)


@pytest.mark.parametrize(("ranks", "cases"), [(2, KINDS), (3, ("adamw", "clipped", "adafactor"))], ids=str)
@pytest.mark.slow("ranks train twelve optimizers twice")
def test_every_optimizer_of_torch_and_way_to_step(ranks: int, cases: tuple[str, ...]) -> None:
    check_equal(answers(ranks, cases), cases)


def test_a_rank_holds_its_share_of_the_states_also_after_a_load(found: list[dict[str, Any]]) -> None:
    for name in CASES:
        for what in ("held", "loaded"):
            assert max(rank[name][what] for rank in found) <= 0.5 + 0.02, (name, what)
            assert sum(rank[name][what] for rank in found) == pytest.approx(1, abs=0.01)  # the counts of steps
        assert all(rank[name]["whole"] == 1 for rank in found)


def test_rank_0_alone_saves_and_evaluates_beside_a_slow_rank(found: list[dict[str, Any]]) -> None:
    assert found[0]["slow"]["state"]
    assert found[0]["slow"]["seen"]
    assert found[0]["slow"]["again"]
    assert all(rank["slow"]["after"] for rank in found)


def test_no_rank_steps_while_another_one_saves_before_the_step(found: list[dict[str, Any]]) -> None:
    assert found[0]["between"]["state"]
    assert all(rank["between"]["weights"] for rank in found)


def test_what_cannot_be_shared_is_refused_or_stays_whole_with_the_reason(found: list[dict[str, Any]]) -> None:
    for rank in found:
        lbfgs, own, join, joined, told, held = rank["refused"]
        assert lbfgs.startswith("`LBFGS` must update each weight by its own gradients alone")
        assert own.startswith("`Own` must update each weight by its own gradients alone")
        assert join.startswith("`join` must not be used where optimizer states are shared")
        assert joined == "joined"
        assert told == own
        assert held == 9


def test_a_step_that_raises_leaves_the_optimizer_whole(found: list[dict[str, Any]]) -> None:
    assert all(rank["raised"] == [True, 9] for rank in found)


def test_a_step_that_one_rank_makes_alone_is_an_error_on_all(found: list[dict[str, Any]]) -> None:
    assert all(
        "`rank 1` must do what rank 0 does where optimizer states are shared" in each["different"] for each in found
    )


def test_a_module_that_is_copied_or_saved_holds_nothing_of_stoker(found: list[dict[str, Any]]) -> None:
    assert all(rank["kept"] == [False, True] for rank in found)

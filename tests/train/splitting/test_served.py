"""Unmodified programs whose layers are split between two of their steps, on real ranks over gloo."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from tests.train.answers import answers_of

pytestmark = pytest.mark.integration
ALL = {"table": "table", "head.1": "column", "head.3": "row"}
MORE = ("pair", "apart", "all", "accumulated", "view", "lost_sgd")


def answers(*cases: str, ranks: int = 2) -> dict[str, list[dict[str, Any]]]:
    """What each rank found, by case."""
    return answers_of("splitting.programs.served_ranks", ranks, *cases, limit_s=250)


def is_plain(ranks: list[dict[str, Any]]) -> None:
    """Losses, norms, weights and moments are those of plain DDP, and the same whole ones on all ranks."""
    for each in ranks:
        assert each["losses"] < 1e-5, each
        assert each["weights"] < 1e-4, each
        assert each["moments"] < 1e-4, each
        assert each["names"], "state dicts have the names of plain torch"
        assert each["same"], "the module and its weights stay the objects that they were"
        assert each["bits"] == ranks[0]["bits"]


@pytest.fixture(scope="module")
def few() -> dict[str, list[dict[str, Any]]]:
    return answers("all", "lost", "own_norm")


@pytest.mark.slow("two ranks train each case, one of them twice")
def test_losses_are_plain_ddps_when_layers_are_split_between_two_steps(few: dict[str, list[dict[str, Any]]]) -> None:
    is_plain(few["all"])
    for each in few["all"]:
        assert each["methods"] == ALL
        (run,) = each["runs"]
        assert (run["layers"], run["step"], run["kept"], run["why"]) == (ALL, 11, True, "")
        assert each["split"] == 3
    held = [each["held"] for each in few["all"]]
    assert max(held) < 0.55 * few["lost"][0]["held"]
    assert few["all"][0]["said"][0].startswith("Net: split layers (`table`, `head.1`, `head.3`) save ")


def test_splits_that_gain_nothing_are_taken_back_on_all_ranks(few: dict[str, list[dict[str, Any]]]) -> None:
    is_plain(few["lost"])
    for each in few["lost"]:
        (run,) = each["runs"]
        assert not run["kept"]
        assert "a step took" in run["why"]
        assert (each["methods"], each["split"]) == ({}, 0)
        unsplit = ast.literal_eval(each["note"])
        assert all(unsplit[name] == f"tried: {run['why']}" for name in ALL), "the plan that followed knows it"


def test_ranks_that_go_apart_are_made_whole_and_alike(few: dict[str, list[dict[str, Any]]]) -> None:
    """A program that scales gradients by a norm of its own: of parts, ranks would have other ones."""
    first, second = few["own_norm"]
    assert "the program looks at whole gradients or weights itself" in first["runs"][0]["why"]
    assert first["own"] == second["own"]
    assert first["state"] == second["state"]


@pytest.mark.slow("two or three ranks train each case twice")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("ranks", [2, 3])
def test_each_split_in_each_kind_of_step(ranks: int) -> None:
    found = answers(*MORE, ranks=ranks)
    for name in MORE:
        is_plain(found[name])
        assert all(each["runs"][0]["step"] == 11 for each in found[name]), name
        assert bool(found[name][0]["split"]) == (name != "lost_sgd")
    half = answers("autocast", ranks=ranks)["autocast"]
    assert all(each["losses"] < 2e-2 and each["split"] == 2 for each in half)


@pytest.mark.slow("two ranks train each program")
@pytest.mark.timeout(300)
def test_what_a_split_would_not_keep_is_seen_with_the_reason() -> None:
    reasons = {
        "static": ("head.1", "DDP has a static graph"),
        "unused": ("table", "DDP looks for unused weights"),
        "optimizer": ("head.1", "its optimizer `Whole` is not known to work by element"),
        "unstepped": ("head.1", "its gradient holds more than one product"),
        "hook": ("head.1", "must be without hooks to be split"),
        "gradient": ("head.1", "the program has hooks on its gradients"),
        "frozen": ("head.1", "some of its weights are frozen"),
        "view": ("head.1", "the program holds a view of its weights"),
        "scaler": ("head.1", "a GradScaler may skip a step on one rank alone"),
        "average": ("table", "the program holds another tensor of its shape"),
        "tied": ("table", "rows of it have gradients that nobody looked up"),
        "shared": ("head.1", "it is neither a product nor a table"),
        "recomputed": ("head.1", "called outside of the module's forward pass, as checkpointing does"),
        "unseen": ("head.1", "its gradient holds more than one product"),
        "twice": ("head.1", "its gradient holds more than one product"),
        "direct": ("head.1", "called outside of the module's forward pass"),
    }
    (first, second) = answers("refused")["refused"]
    for name, (layer, reason) in reasons.items():
        assert reason in ast.literal_eval(first[name]["note"])[layer], name
        assert first[name] == second[name], name
    assert first["checkpoint"]["planned"] == 3, "a checkpoint that was loaded is no average"
    compiled = answers("compiled")["compiled"][0]
    assert ast.literal_eval(compiled["note"])["_orig_mod.head.1"] == "the module is compiled"


@pytest.mark.slow("two ranks train two programs")
def test_rank_0_alone_saves_evaluates_and_copies_and_plain_torch_goes_on() -> None:
    found = answers("alone", "joins")
    for each in found["alone"]:
        assert each["split"] == [True]
        assert each["hooked"] == 15, "the program's hooks on DDP stay"
        assert each["same"], "a layer that the program has kept is the split one"
        assert each["back"] < 1e-6
        assert each["plain"] < 1e-5
    first = found["alone"][0]
    assert first["apart"] < 1e-5
    assert not first["stoker"], "a pickled model is one of torch alone"
    one, other = found["joins"]
    assert one["split"] == other["split"] == [True]
    assert "the program uses `join`" in one["runs"][0]["why"]
    assert one["own"] == other["own"]
    assert (one["steps"], other["steps"]) == (34, 36)

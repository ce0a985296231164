"""Exchanges on three real ranks."""

import json
import os
import sys
from typing import Any

import pytest

from tests.warm import programs

pytestmark = pytest.mark.integration


def found(name: str) -> list[dict[str, Any]]:
    """What each rank found."""
    done = programs.run(
        [sys.executable, "-m", "tests.train.cases", name], capture_output=True, text=True, timeout=110,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow("trains each model twice on three ranks")
@pytest.mark.parametrize("models", ["few", "equal"])
def test_losses_are_those_of_plain_ddp_and_weights_are_equal_on_all_ranks(models: str) -> None:
    ranks = found(models)
    assert all(apart <= 1e-5 for rank in ranks for apart in rank["apart"].values()), ranks
    assert ranks[0]["weights"] == ranks[1]["weights"] == ranks[2]["weights"]
    assert ranks[0]["gathered"] > 100
    assert not ranks[0]["repaired"]


def test_a_planted_wrong_factor_falls_back_in_its_step_on_all_ranks() -> None:
    ranks = found("wrong_factor")
    assert all(rank["doubts"] == {"first.weight": {"its gradient holds more than the product": 1}} for rank in ranks)
    assert all(rank["apart"] < 1e-5 for rank in ranks)
    assert len({rank["weights"] for rank in ranks}) == 1


def test_a_planted_different_bit_is_found_and_repaired() -> None:
    ranks = found("different_bit")
    assert all(rank["repaired"] == 1 for rank in ranks)
    assert len({rank["weights"] for rank in ranks}) == 1
    assert "ranks had different weights" in ranks[0]["notes"][0]


def test_weights_that_the_program_lets_differ_are_left() -> None:
    ranks = found("own_difference")
    assert not any(rank["repaired"] for rank in ranks)
    assert len({rank["weights"] for rank in ranks}) == 2
    assert "which stay so" in ranks[0]["notes"][0]


def test_a_rank_that_has_joined_is_no_measure_for_the_weights_of_others() -> None:
    ranks = found("joined")
    assert all(rank["apart"] <= 1e-5 and not rank["repaired"] and all(rank["steps"]) for rank in ranks), ranks
    assert len({rank["weights"] for rank in ranks}) == 1


def test_torch_exchanges_sparse_gradients_beside_a_plan() -> None:
    assert all(rank["apart"] <= 1e-5 and rank["methods"] == {"1": "late"} for rank in found("sparse"))


def test_where_one_rank_cannot_look_at_its_buckets_all_stay_with_torch() -> None:
    assert all(rank == {"same": True, "note": "ranks do not have the same layers"} for rank in found("unseen"))


def test_a_programs_own_hook_stays() -> None:
    ranks = found("own_hook")
    assert all(rank["called"] == 1 and rank["restored"] for rank in ranks)
    assert "bucket" in ranks[0]["refused"]
    assert ranks[0]["gradient"] == ranks[1]["gradient"]


def test_what_no_plan_touches_is_plain_ddp_to_the_last_bit() -> None:
    assert all(rank["same"] for rank in found("untouched"))


def test_a_trial_ends_alike_on_all_ranks() -> None:
    ranks = found("trial")
    assert ranks[0]["gain"] is not None
    assert len({(rank["gain"], rank["kept"], rank["weights"]) for rank in ranks}) == 1


def test_a_plan_that_names_own_sockets_sums_by_them() -> None:
    ranks = found("ring")
    assert len({rank["weights"] for rank in ranks}) == 1
    assert all(rank["apart"] < 1e-5 and rank["steps"] for rank in ranks)
    # One sum a bucket, named for its first weight; none and no thread is left behind.
    assert all({name.partition(".")[0] for name in rank["sums"]} == {"first", "last"} for rank in ranks), ranks
    assert all(rank["sockets"] == 0 for rank in ranks)


def test_compressed_sums_have_the_same_weights_on_all_ranks_and_learn() -> None:
    ranks = found("compressed")
    assert len({rank["weights"] for rank in ranks}) == 1
    for rank in ranks:
        assert all(0 < count < 60 for count in rank["counts"].values()), rank["counts"]
        assert rank["doubts"] == {"power": ["its values were not finite"], "half": ["its values were not finite"]}
        assert rank["losses"] != rank["plain"]
        assert sum(rank["losses"][-10:]) < 1.1 * sum(rank["plain"][-10:])
        assert rank["bytes"] < 0.6


def test_where_one_rank_cannot_connect_the_backend_sums_on_all() -> None:
    ranks = found("no_ring")
    assert len({rank["weights"] for rank in ranks}) == 1
    assert all(rank["apart"] < 1e-5 and rank["methods"] == {"middle": "late"} and rank["steps"] for rank in ranks)
    assert "planted not to" in ranks[1]["notes"][0]
    assert "the backend makes all sums" in ranks[0]["notes"][0]


@pytest.mark.slow("two trials, one with a sum that sleeps")
def test_slow_sockets_lose_their_trial_and_the_rest_of_the_plan_is_tried() -> None:
    ranks = found("slow_ring")
    assert len({(rank["weights"], str(rank["methods"])) for rank in ranks}) == 1
    assert ranks[0]["methods"] == {"middle": "late"}
    assert "the rest of the plan is tried without them" in ranks[0]["notes"][0]
    assert all(rank["sockets"] == 0 for rank in ranks)


def test_links_are_probed_before_a_plan_and_sums_go_by_islands() -> None:
    ranks = found("probed")
    assert len({rank["weights"] for rank in ranks}) == 1
    assert all(rank["apart"] < 1e-5 and rank["steps"] and not rank["notes"] for rank in ranks), ranks
    # Rank 0 plans; what each rank says of the links is the same, but for the time that it took.
    links = [{**each, "took_s": 0} for each in ranks[0]["links"]]
    assert links == [links[0]] * 4
    assert (links[0]["order"], links[0]["islands"]) == ([0, 2, 1, 3], [[0, 2], [1, 3]])
    assert len(links[0]["rates"]) == len(links[0]["latencies_s"]) == 4
    assert all(rank["sums"] == ["first.bias (0, 2, 1, 3) ((0, 2), (1, 3))"] for rank in ranks), ranks
    assert all(rank["sockets"] == 0 for rank in ranks)


def test_where_one_rank_cannot_probe_all_plan_without_it() -> None:
    ranks = found("no_probe")
    assert len({rank["weights"] for rank in ranks}) == 1
    assert all(rank["apart"] < 1e-5 and rank["methods"] == {"first": "ring"} for rank in ranks), ranks
    assert ranks[0]["links"] == [None] * 3
    assert ranks[1]["notes"] == ["Mlp: planned without a probe of the links: planted"], ranks
    assert "planned without a probe of the links: `rank 1` has " in ranks[0]["notes"][0]
    assert all(rank["sockets"] == 0 for rank in ranks)


def test_ddps_first_copy_goes_by_chain_to_the_last_bit() -> None:
    expected = {
        "alike": True, "sockets": [0, True], "parameters": True, "buffers": True, "ignored": True, "refused": True,
        "chained": [True, True, True], "others": [False], "torch": True, "said": [],
    }  # fmt: skip
    assert found("copied") == [expected] * 3


def test_where_one_rank_cannot_copy_by_chain_torch_does_on_all() -> None:
    ranks = found("uncopied")
    assert all(rank["alike"] and rank["chained"] == [False] and rank["sockets"] == 0 for rank in ranks), ranks
    (line,) = ranks[0]["said"]
    assert line.startswith("the first synchronisation goes by torch's own broadcast: rank ")
    assert ranks[1]["said"] == ranks[2]["said"] == []


@pytest.mark.slow("1,300 steps on three ranks")
def test_a_thousand_steps_take_no_more_memory_or_descriptors() -> None:
    ranks = found("thousand_steps")
    assert len({rank["weights"] for rank in ranks}) == 1
    for rank in ranks:
        assert all(steps > 1_200 for steps in rank["steps"].values()), rank["steps"]
        assert set(rank["steps"]) == {"late", "rows"}, "those that are counted step by step"
        assert rank["after"][0] <= rank["before"][0], "descriptors"
        assert rank["after"][1] <= rank["before"][1], "threads"
        assert rank["after"][2] - rank["before"][2] < 4 << 20, "resident bytes"
        assert rank["sockets"] == 0

"""A job's sizes are searched on the virtual clock: the live search over the live policy of the queue."""

from __future__ import annotations

import pytest

from stoker.scale.cluster.sizes import SizeConfig
from stoker.sim.sizes import ElasticJob, simulate_sizes


def test_the_rate_is_found_and_kept() -> None:
    """Steps of 0.2 s that four training workers do in 0.32 s; four data workers make what one step takes."""
    job = ElasticJob(step_s=lambda n: 0.2 * (1 + 0.2 * (n - 1)), item_s=0.7, checkpoints=5)
    timeline = simulate_sizes(job, SizeConfig(least=1, most=4, max_feeders=16))
    last = timeline.windows[-1]
    assert (timeline.changes, last.workers) == (1, 4)
    assert last.batches_per_s == pytest.approx(4 / 0.32, rel=0.05)


def test_cpus_that_cost_much_are_left_out() -> None:
    """A batch takes 10 ms to make and 200 ms to train on: a CPU for half the price of a GPU brings 5 %."""
    config = SizeConfig(least=1, most=2, objective="price", worker_price=1.0, cpu_price=0.5, max_feeders=16)
    timeline = simulate_sizes(ElasticJob(step_s=lambda n: 0.2 * n, item_s=0.01, checkpoints=4), config)
    last = timeline.windows[-1]
    assert (timeline.changes, last.workers, last.feeders) == (1, 1, 0)


def test_a_short_horizon_changes_nothing() -> None:
    config = SizeConfig(least=1, most=4, horizon_s=5.0)
    timeline = simulate_sizes(ElasticJob(step_s=lambda n: 0.2, item_s=0.1, checkpoints=3), config)
    assert timeline.changes == 0
    assert "beyond `--horizon` 5.00 s" in timeline.decisions[-1].reason

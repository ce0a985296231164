"""Sizes of a job: found within a few changes, each with a cause, repaid in time, and never towards what was worse."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.scale.cluster.sizes import (
    MARGIN,
    MAX_CHANGES,
    SizeChange,
    SizeConfig,
    SizeDecision,
    SizeModel,
    SizeSearch,
    SizeWindow,
    on_global_batch,
)

CHANGE = SizeChange(restart_s=10.0, repeated_steps=2, step_s=0.5)
AT_ONCE = SizeChange(restart_s=0.0)


def none(workers: int) -> float:
    return 0.0


class Truth:
    """A job as it is: ranks in step, each with data workers of its own, and rates that lose more than steps show."""

    def __init__(self, config: SizeConfig, steps: list[float], item_s: float, kept: list[float] | None = None) -> None:
        self.config, self.steps, self.item_s, self.kept = config, steps, item_s, kept or [1.0] * 4

    def rate(self, workers: int, feeders: int) -> float:
        step_s, kept = self.steps[workers - 1], self.kept[workers - 1]
        if not feeders:
            return kept * workers / (step_s + self.item_s)
        return kept * workers * min(1.0 / step_s, (feeders // workers) / self.item_s)

    def score(self, workers: int, feeders: int) -> float:
        return self.rate(workers, feeders) / self.config.price(workers, feeders)

    def best(self) -> float:
        pairs = itertools.product(self.config.sizes, range(self.config.max_feeders + 1))
        return max(self.score(n, d) for n, d in pairs if not d or d >= n)

    def window(self, workers: int, feeders: int) -> SizeWindow:
        return SizeWindow(
            workers=workers,
            feeders=feeders,
            batches_per_s=self.rate(workers, feeders),
            step_s=self.steps[workers - 1],
            item_s=self.item_s,
        )

    def queue(self, workers: int) -> int:
        """The data workers that the queue would come to."""
        each = math.ceil(self.item_s / self.steps[workers - 1] - 1e-9)
        return workers * max(1, min(each, self.config.max_feeders // workers))


def searched(
    truth: Truth, change: SizeChange = CHANGE, prior: Callable[[int], float] = none
) -> tuple[list[SizeDecision], list[SizeWindow]]:
    """Ten checkpoints of a job."""
    search = SizeSearch(truth.config, prior)
    workers, feeders = truth.config.sizes[0], truth.queue(truth.config.sizes[0])
    decisions: list[SizeDecision] = []
    windows: list[SizeWindow] = []
    for _ in range(10):
        windows.append(truth.window(workers, feeders))
        search.observe(windows[-1])
        decisions.append(search.decide(change))
        sizes = decisions[-1].sizes
        if decisions[-1].restart:
            search.moved()
            workers = sizes.workers
            feeders = sizes.feeders and truth.queue(workers)
        if feeders and (most := decisions[-1].most_feeders_each) is not None:
            feeders = min(truth.queue(workers), workers * max(1, most))
    return decisions, windows


objectives = st.sampled_from(["rate", "price"])
configs = st.builds(
    SizeConfig,
    least=st.just(1),
    most=st.integers(1, 4),
    objective=objectives,
    worker_price=st.floats(0.5, 4.0),
    cpu_price=st.sampled_from([0.02, 0.1, 0.5]),
    max_feeders=st.just(16),
    horizon_s=st.sampled_from([60.0, 3600.0]),
)
truths = st.builds(
    Truth,
    configs,
    st.lists(st.floats(0.01, 2.0), min_size=4, max_size=4),
    st.floats(0.001, 3.0),
    st.lists(st.floats(0.35, 1.0), min_size=4, max_size=4),
)


@given(truths)
def test_whatever_steps_cost(truth: Truth) -> None:
    """Steps of any cost at any number: few changes, each better than what was measured, repaid, and then peace."""
    decisions, windows = searched(truth)
    made = [(decision, window) for decision, window in zip(decisions, windows, strict=True) if decision.restart]
    assert len(made) <= MAX_CHANGES
    measured: dict[tuple[int, bool], float] = {}
    for decision, window in zip(decisions, windows, strict=True):
        key = window.workers, window.feeders > 0
        score = window.batches_per_s / truth.config.price(window.workers, window.feeders)
        measured[key] = max(score, measured.get(key, 0.0))
        sizes = decision.sizes
        assert truth.config.least <= sizes.workers <= truth.config.most
        assert sizes.feeders <= truth.config.max_feeders
        if decision.restart and sizes.workers != window.workers:
            assert measured.get((sizes.workers, sizes.feeders > 0), math.inf) > measured[key]
            assert "repaid after" in decision.reason
    assert not any(decision.restart for decision in decisions[MAX_CHANGES:]), "no change without a cause"
    if truth.config.horizon_s == 3600.0:
        # It ends at what was measured best, or at what is not worth a change to it.
        assert max(measured.values()) <= measured[windows[-1].workers, windows[-1].feeders > 0] * (1 + 2 * MARGIN)


@given(
    configs,
    st.floats(0.05, 1.0),
    st.sampled_from([0.0, 0.05, 0.2, 0.5]),
    st.floats(0.5, 1.0),
    st.floats(0.01, 10.0),
)
def test_a_job_whose_communication_has_a_prior(
    config: SizeConfig, step_s: float, share: float, known: float, item: float
) -> None:
    """Rings, of which the prior has the low end: the best pair but for 5 %, as far as a change is repaid."""

    def exposed(workers: int) -> float:
        return step_s * share * 2 * (workers - 1) / workers

    truth = Truth(config, [step_s + exposed(n) for n in range(1, 5)], item * step_s)
    _, windows = searched(truth, AT_ONCE, lambda workers: known * exposed(workers))
    last = windows[-1]
    assert truth.score(last.workers, last.feeders) >= 0.95 * truth.best() - 1e-12


GROWTH: dict[str, Callable[[int], float]] = {
    "by each": lambda n: n - 1.0,
    "as a ring": lambda n: 2.0 * (n - 1) / n,
    "by squares": lambda n: (n - 1.0) ** 2 / 3,
    "by doublings": math.log2,
}


@pytest.mark.parametrize("objective", ["rate", "price"])
@pytest.mark.parametrize("growth", GROWTH)
def test_the_best_pair_is_found_whatever_steps_grow_by(growth: str, objective: str) -> None:
    """Nothing is known beforehand, but of rings: 0.95 of the best, in three changes at most."""
    for share, item, price in itertools.product(
        (0.0, 0.1, 0.3, 0.5, 0.8, 1.2, 1.5), (0.05, 1.0, 4.0, 12.0), (0.02, 0.3)
    ):
        config = SizeConfig(least=1, most=4, objective=objective, cpu_price=price, max_feeders=16)  # type: ignore[arg-type]

        def exposed(workers: int, share: float = share) -> float:
            return share * GROWTH[growth](workers)

        truth = Truth(config, [1.0 + exposed(n) for n in range(1, 5)], item)
        decisions, windows = searched(truth, AT_ONCE, exposed if growth == "as a ring" else none)
        assert truth.score(windows[-1].workers, windows[-1].feeders) >= 0.95 * truth.best() - 1e-12, (
            share,
            item,
            price,
        )
        assert sum(decision.restart for decision in decisions) <= MAX_CHANGES


def test_what_was_measured_worse_is_not_tried_again() -> None:
    """One training worker was disturbed beyond belief, so that its parts promise more than two gave."""
    search = SizeSearch(SizeConfig(least=1, most=2, max_feeders=8))
    search.observe(SizeWindow(workers=1, feeders=1, batches_per_s=0.2, step_s=0.2, item_s=0.2))
    search.observe(SizeWindow(workers=2, feeders=2, batches_per_s=1.0, step_s=2.0, item_s=0.2))
    assert not search.decide(AT_ONCE).restart


def test_a_change_must_repay_itself_within_the_horizon() -> None:
    for horizon_s, restarts in ((30.0, True), (15.0, False)):
        search = SizeSearch(SizeConfig(least=1, most=2, horizon_s=horizon_s), none)
        search.observe(SizeWindow(workers=1, feeders=2, batches_per_s=2.0, step_s=0.5, item_s=0.4, batch_samples=8))
        decision = search.decide(SizeChange(restart_s=8.0, repeated_steps=4, step_s=0.5))
        assert decision.restart is restarts
        assert "restart 8.00 s, 4 steps again: repaid after 20.0 s" in decision.reason
        assert "2.00x the rate" in decision.reason
        assert "(32 against 16 samples/s)" in decision.reason
        assert decision.sizes.workers == (2 if restarts else 1)


def test_input_that_is_short_gets_no_training_workers() -> None:
    """All data workers there may be make 4 batches/s, which one training worker takes."""
    search = SizeSearch(SizeConfig(least=1, most=4, max_feeders=4))
    search.observe(SizeWindow(workers=1, feeders=4, batches_per_s=4.0, step_s=0.2, item_s=1.0))
    assert not search.decide(AT_ONCE).restart
    by_cpu = SizeSearch(SizeConfig(least=1, most=4, cores=2.0))
    by_cpu.observe(SizeWindow(workers=1, feeders=2, batches_per_s=4.0, step_s=0.2, item_s=0.5, item_cpu_s=0.5))
    assert not by_cpu.decide(AT_ONCE).restart
    by_link = SizeSearch(SizeConfig(least=1, most=4))
    by_link.observe(SizeWindow(workers=1, feeders=8, batches_per_s=4.0, step_s=0.2, item_s=0.5, link_full=True))
    assert not by_link.decide(AT_ONCE).restart


def test_pinned_loaders_keep_their_data_workers() -> None:
    search = SizeSearch(SizeConfig(least=1, most=4))
    search.observe(SizeWindow(workers=1, feeders=2, batches_per_s=4.0, step_s=0.2, item_s=0.5, elastic=False))
    decision = search.decide(AT_ONCE)
    assert (decision.sizes.workers, decision.sizes.feeders, decision.most_feeders_each) == (4, 8, None)
    # Four ranks, each with two data workers that make 4 batches/s together.
    assert decision.sizes.batches_per_s == pytest.approx(16.0)


def test_a_price_limits_data_workers_and_the_rate_leaves_them_to_the_queue() -> None:
    window = SizeWindow(workers=1, feeders=3, batches_per_s=2.0, step_s=0.5, item_s=1.05)
    for objective, most in (("rate", None), ("price", 2)):
        config = SizeConfig(least=1, most=1, objective=objective, worker_price=1.0, cpu_price=0.4)  # type: ignore[arg-type]
        search = SizeSearch(config)
        search.observe(window)
        assert search.decide(AT_ONCE).most_feeders_each == most


def test_the_global_batch() -> None:
    config = SizeConfig(least=1, most=4, micro_batches=4)
    assert config.sizes == (1, 2, 4)
    assert [config.accumulation(n) for n in config.sizes] == [4, 2, 1]
    assert on_global_batch(config, 1, 2, 8) == "the global batch stays 32 samples (accumulation 4 -> 2)"
    told = on_global_batch(SizeConfig(least=1, most=4), 1, 2, 8)
    assert told.startswith("the global batch becomes 16 samples, from 8; `--accumulation-env NAME` keeps it")
    with pytest.raises(ValueError, match="divisible by a size"):
        SizeConfig(least=3, most=4, micro_batches=5)


def test_accumulation_exchanges_once_a_step() -> None:
    windows = {1: SizeWindow(workers=1, feeders=1, batches_per_s=1.0, step_s=1.0, item_s=0.1)}
    model = SizeModel(windows, SizeConfig(least=1, most=4, micro_batches=4), lambda n: 0.4 * (n - 1))
    assert [model.step_s(n) for n in (1, 2, 4)] == pytest.approx([1.0, 1.2, 2.2])


def test_nothing_is_decided_on_nothing() -> None:
    with pytest.raises(ValueError, match="nothing was observed"):
        SizeSearch(SizeConfig(least=1, most=2)).decide(CHANGE)

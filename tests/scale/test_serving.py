"""Requests before engines: each ends once, deadlines are kept under overload, and beliefs about costs heal."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.scale.serving import CostCurve, ServingQueue, ServingRules
from stoker.serve.policy import QueuedRequest
from stoker.sim.serving import NO_FRONT_END, Arrival, FrontEnd, ServedTrace, poisson, serve_trace

CURVE = CostCurve(((1, 1.1e-3), (32, 4.2e-3)))
"""1 ms a batch and 0.1 ms a sample."""
SLO_S = 0.02


def true_costs(off: float, noise: float, seed: int = 1) -> Callable[[int], float]:
    source = random.Random(seed)
    return lambda samples: (1e-3 + 1e-4 * samples) * off * max(0.1, source.gauss(1.0, noise))


def overloaded(
    load: float, engines: int = 1, off: float = 1.3, noise: float = 0.2, front: FrontEnd = NO_FRONT_END, seed: int = 0,
) -> tuple[float, float, ServedTrace]:  # fmt: skip
    """In time, as a share of the capacity, and late ones, as a share of answers."""
    queue = ServingQueue(ServingRules(slo_s=SLO_S), CURVE, engines)
    capacity = engines * 32 / (4.2e-3 * off + front.handover_s)
    trace = serve_trace(
        poisson(load * capacity, 6_000, seed), queue, engines, true_costs(off, noise, seed), SLO_S, front
    )
    in_time = trace.in_time(SLO_S)
    return in_time / trace.end_s / capacity, 1.0 - in_time / len(trace.latencies_s), trace


@pytest.mark.parametrize("front", [NO_FRONT_END, FrontEnd(0.3e-3, 0.5e-3, 0.0, 0.5e-3)])
@pytest.mark.parametrize(("load", "engines"), [(2.0, 1), (4.0, 1), (2.0, 2)])
def test_under_overload_the_capacity_is_used_and_few_are_late(load: float, engines: int, front: FrontEnd) -> None:
    used, late, _ = overloaded(load, engines, front=front)
    assert used > 0.95
    assert late < 0.02


SHARE_OF_A_MS = st.floats(0.0, 0.5e-3)


@settings(max_examples=25, deadline=None)
@given(
    st.floats(1.2, 4.0), st.sampled_from([1, 2]), st.floats(0.7, 1.5), st.floats(0.0, 0.2),
    st.builds(FrontEnd, SHARE_OF_A_MS, SHARE_OF_A_MS, st.just(0.0), SHARE_OF_A_MS, st.just(0.0)), st.integers(0, 1000),
)  # fmt: skip
def test_whatever_the_belief_is_off_and_the_front_end_takes(
    load: float, engines: int, off: float, noise: float, front: FrontEnd, seed: int
) -> None:
    used, late, _ = overloaded(load, engines, off, noise, front, seed)
    assert used > 0.92
    assert late < 0.025


def test_the_time_until_answers_are_written_is_learned() -> None:
    used, late, _ = overloaded(2.0, noise=0.0, front=FrontEnd(after_s=0.5e-3))
    assert used > 0.9
    assert late < 0.01


def test_requests_that_come_at_once_are_read_one_after_another() -> None:
    queue = ServingQueue(ServingRules(), CURVE, 4)
    at_once = [Arrival(0.0)] * 4
    trace = serve_trace(at_once, queue, 4, lambda _: 0.01, math.inf, FrontEnd(core_s=0.001))
    assert trace.latencies_s == pytest.approx([0.011, 0.012, 0.013, 0.014])


def test_an_engine_that_has_its_next_batch_does_not_wait_for_it() -> None:
    """A fifth of the time was on the way of batches: the share of the capacity is that much above what it would be."""
    used, late, _ = overloaded(2.0, front=FrontEnd(handover_s=1.4e-3))
    assert used > 1.15
    assert late < 0.03
    between, _, _ = overloaded(2.0, front=FrontEnd(handover_s=1.4e-3, between_s=0.7e-3))
    assert 0.8 * used < between < 0.95 * used


def test_what_may_be_late_runs_where_nothing_takes_its_place() -> None:
    """An empty place in a batch is lost for certain, a request at the margin of the noise perhaps."""
    queue = ServingQueue(ServingRules(slo_s=SLO_S, max_batch=2), CURVE)
    queue.spread = 0.2
    expected_s = CURVE.seconds(2)
    for number in range(2):
        queue.arrive(QueuedRequest(number, 1, 1.2 * expected_s))
    chosen = queue.next_batch(0.0)
    assert chosen is not None
    assert (len(chosen.requests), list(chosen.dropped)) == (2, [])
    for number in range(2, 7):
        queue.arrive(QueuedRequest(number, 1, (0.9 if number == 2 else 1.2 if number < 5 else 4.0) * expected_s))
    chosen = queue.next_batch(0.0)
    assert chosen is not None
    assert ([each.number for each in chosen.requests], list(chosen.dropped)) == ([5, 6], [2, 3, 4])


def test_caution_follows_what_is_late() -> None:
    queue = ServingQueue(ServingRules(slo_s=SLO_S), CURVE)
    before = queue.caution
    for _ in range(500):
        queue.answered(0.0, 0.0)
    assert queue.caution == 1.0
    queue.answered(0.0, 0.5)
    assert queue.caution == pytest.approx(1.495)
    for _ in range(10):
        queue.answered(0.0, 1.0)
    assert queue.caution > before
    queue.spread = 0.2
    queue.started(0.0, 0.0)
    for number in range(2):
        queue.arrive(QueuedRequest(number, 1, 1.2 * CURVE.seconds(2)))
    chosen = queue.next_batch(0.0)  # what may be late does not run now, not even in an empty place
    assert chosen is not None
    assert (len(chosen.requests), list(chosen.dropped)) == (0, [0, 1])


def test_what_fills_a_batch_waits_for_no_other() -> None:
    queue = ServingQueue(ServingRules(slo_s=math.inf, max_batch=4), CURVE)
    for number in range(3):
        queue.arrive(QueuedRequest(number, 1, math.inf))
    assert queue.predicted_s(0.0, 3) == pytest.approx(CURVE.seconds(4))


def test_after_a_stop_of_the_whole_service_the_queue_is_itself_again_within_a_second() -> None:
    """Under overload nothing would be measured while all looks late."""
    queue = ServingQueue(ServingRules(slo_s=SLO_S), CURVE)
    for step in range(30):
        queue.answered(1.0, 1.0)
        queue.ended(0.0, queue.started(0.0, 4.2e-3), 32, 0.1 * step)
    rate = 2 * 32 / 4.2e-3
    trace = serve_trace(poisson(rate, int(3 * rate)), queue, 1, CURVE.seconds, SLO_S)
    assert trace.in_time(SLO_S) > (3.0 - 1.0) * rate / 2


def test_what_an_engine_that_computes_cannot_bring_in_time_is_dropped() -> None:
    queue = ServingQueue(ServingRules(slo_s=SLO_S, max_batch=1), CURVE)
    batch = queue.started(0.0, 4e-3)
    assert queue.left_s(1e-3, batch) == pytest.approx(3e-3)
    for number, deadline_s in enumerate((4e-3, 9e-3)):
        queue.arrive(QueuedRequest(number, 1, deadline_s))
    chosen = queue.next_batch(1e-3, queue.left_s(1e-3, batch))
    assert chosen is not None
    assert ([each.number for each in chosen.requests], list(chosen.dropped)) == ([1], [0])
    ahead = queue.started(4e-3, chosen.expected_s)
    # One that comes now waits for both.
    assert queue.predicted_s(1e-3, 3) == pytest.approx(3e-3 + 2 * 1.1e-3, rel=0.2)
    queue.ended(5e-3, batch, 32, 5e-3)
    queue.begins(5e-3, ahead)
    assert queue.left_s(5e-3, ahead) == pytest.approx(chosen.expected_s)


@pytest.mark.parametrize("wait_s", [None, 0.0, 3e-3], ids=["idle", "late", "punctual"])
def test_what_drops_leave_is_not_bound_to_an_engine_that_computes(wait_s: float | None) -> None:
    """Under overload places of late ones would be lost: others come for them until the engine is idle."""
    queue = ServingQueue(ServingRules(slo_s=SLO_S, max_batch=4), CURVE)
    if wait_s is not None:
        queue.started(0.0, wait_s)
    for number in range(4):
        queue.arrive(QueuedRequest(number, 1, 1e-3 if number == 0 else SLO_S))
    assert queue.is_full
    chosen = queue.next_batch(0.0, wait_s)
    assert chosen is not None
    assert list(chosen.dropped) == [0]
    if wait_s is None:
        assert [each.number for each in chosen.requests] == [1, 2, 3]
        assert queue.num_waiting == 0
        return
    assert list(chosen.requests) == []
    assert (queue.num_waiting, queue.waiting_samples, queue.next_batch(0.0, wait_s)) == (3, 3, None)
    queue.arrive(QueuedRequest(4, 1, SLO_S))
    chosen = queue.next_batch(0.0, wait_s)
    assert chosen is not None
    assert [each.number for each in chosen.requests] == [1, 2, 3, 4]


def test_what_an_engine_that_computes_did_not_get_is_there_once_it_is_idle() -> None:
    queue = ServingQueue(ServingRules(slo_s=SLO_S, max_batch=4), CURVE)
    batch = queue.started(0.0, 1e-3)
    for number in range(3):
        queue.arrive(QueuedRequest(number, 1, SLO_S))
    assert queue.next_batch(2e-3, queue.left_s(2e-3, batch)) is None
    queue.ended(3e-3, batch, 4, 3e-3)
    chosen = queue.next_batch(3e-3)
    assert chosen is not None
    assert [each.number for each in chosen.requests] == [0, 1, 2]


@pytest.mark.parametrize("wait_s", [0.0, 3e-3])
@pytest.mark.parametrize("kinds", [(None,), ("a", "b"), (None, "a")])
def test_what_runs_alone_or_has_others_behind_it_does_not_wait_for_more(
    kinds: tuple[str | None, ...], wait_s: float
) -> None:
    queue = ServingQueue(ServingRules(max_batch=4), CURVE)
    for number, kind in enumerate(kinds):
        queue.arrive(QueuedRequest(number, 1, math.inf, kind))
    chosen = queue.next_batch(0.0, wait_s)
    assert chosen is not None
    assert [each.number for each in chosen.requests] == [0]


def test_the_way_of_a_batch_does_not_grow_with_it() -> None:
    """On a busy machine each batch is 3 ms on its way: small ones are no way out, as a ratio of costs would have it."""
    queue = ServingQueue(ServingRules(slo_s=SLO_S), CURVE)
    for step in range(100):
        queue.ended(step, queue.started(step, 4e-3), 1, CURVE.seconds(1), 3e-3)
    assert queue.ratio == pytest.approx(1.0)
    assert queue.handover_s == pytest.approx(3e-3, rel=0.01)
    assert queue.batch == 32
    assert queue.predicted_s(100.0, 3) == pytest.approx(3e-3 + CURVE.seconds(1), rel=0.01)
    queue.ended(100, queue.started(100, 4e-3), 1, CURVE.seconds(1), 1.0)  # a stop says nothing of the next one
    assert queue.handover_s < 3e-3 + 0.1 * SLO_S


def test_after_the_time_to_answer_one_request_runs_whatever_is_believed() -> None:
    queue = ServingQueue(ServingRules(slo_s=SLO_S), CostCurve(((1, 1.0),)))
    queue.ended(0.0, queue.started(0.0, 1.0), 1, 1.0)
    for number, (now_s, ran) in enumerate([(0.9 * SLO_S, 0), (1.1 * SLO_S, 1), (2 * SLO_S, 0), (2.2 * SLO_S, 1)]):
        queue.arrive(QueuedRequest(number, 1, now_s + SLO_S))
        chosen = queue.next_batch(now_s)
        assert chosen is not None
        assert len(chosen.requests) == ran


def test_noise_beyond_measure_does_not_stop_the_service() -> None:
    """Batches that take either 0.2 or 2 times what they should: some are late, but the engine goes on."""
    queue = ServingQueue(ServingRules(slo_s=SLO_S), CURVE)
    source = random.Random(0)
    trace = serve_trace(
        poisson(2 * 32 / 4.2e-3, 6_000),
        queue,
        1,
        lambda samples: CURVE.seconds(samples) * source.choice([0.2, 2]),
        SLO_S,
    )
    mean_s = 1.1 * CURVE.seconds(32)
    assert trace.in_time(SLO_S) / trace.end_s > 0.6 * 32 / mean_s


def test_the_size_of_batches_follows_what_they_take() -> None:
    queue = ServingQueue(ServingRules(slo_s=SLO_S), CURVE)
    before = queue.batch
    for step in range(60):
        queue.ended(step, queue.started(step, 4.2e-3), before, 4 * 4.2e-3)
    assert queue.batch < before
    assert 2 * queue.ratio * CURVE.seconds(queue.batch) <= 0.9 * SLO_S


def test_below_capacity_nearly_nothing_is_refused() -> None:
    used, late, trace = overloaded(0.7)
    assert used > 0.68
    assert late < 0.001
    assert trace.refused + trace.dropped == 0


def test_a_lone_request_does_not_wait() -> None:
    queue = ServingQueue(ServingRules(), CURVE)
    queue.arrive(QueuedRequest(0, 1, math.inf))
    chosen = queue.next_batch(0.0)
    assert chosen is not None
    assert [each.number for each in chosen.requests] == [0]


def test_higher_priorities_and_earlier_deadlines_go_first() -> None:
    queue = ServingQueue(ServingRules(max_batch=1), CURVE)
    for number, (priority, deadline_s) in enumerate([(3, 9.0), (3, 5.0), (0, 9.0), (7, 1.0)]):
        queue.arrive(QueuedRequest(number, 1, deadline_s, 0, priority))
    order = []
    while (chosen := queue.next_batch(0.0)) is not None:
        order += [each.number for each in chosen.requests]
    assert order == [2, 1, 0, 3]


def test_only_requests_of_one_kind_go_together() -> None:
    queue = ServingQueue(ServingRules(), CURVE)
    for number, kind in enumerate(["a", "b", "a", None, None]):
        queue.arrive(QueuedRequest(number, 1, math.inf, kind))
    batches = []
    while (chosen := queue.next_batch(0.0)) is not None:
        batches.append([each.number for each in chosen.requests])
    assert sorted(batches) == [[0, 2], [1], [3], [4]]


def test_the_batch_leaves_time_for_two() -> None:
    assert ServingQueue(ServingRules(slo_s=SLO_S), CURVE).batch == 32
    short = ServingQueue(ServingRules(slo_s=5e-3), CURVE)
    assert 2 * CURVE.seconds(short.batch) <= 0.8 * 5e-3 < 2 * CURVE.seconds(short.batch + 1)


def test_what_lost_its_engine_runs_alone_first_and_is_not_dropped() -> None:
    queue = ServingQueue(ServingRules(slo_s=SLO_S), CURVE)
    queue.arrive(QueuedRequest(0, 1, 100.0))
    queue.requeue([QueuedRequest(1, 1, 0.5), QueuedRequest(2, 1, 0.5)])
    alone = [queue.next_batch(50.0) for _ in range(2)]
    assert [[each.number for each in chosen.requests] for chosen in alone if chosen] == [[1], [2]]


def test_a_cancelled_request_does_not_run() -> None:
    queue = ServingQueue(ServingRules(), CURVE)
    for number in range(2):
        queue.arrive(QueuedRequest(number, 1, math.inf))
    queue.cancel(0)
    queue.cancel(7)
    chosen = queue.next_batch(0.0)
    assert chosen is not None
    assert [each.number for each in chosen.requests] == [1]
    assert queue.num_waiting == 0


def test_a_belief_that_was_far_off_heals() -> None:
    """An engine that once took five times as long is believed in again, though its requests look late."""
    queue = ServingQueue(ServingRules(slo_s=SLO_S), CostCurve(((1, 5e-3),)))
    for step in range(100):
        queue.ended(step, queue.started(step, 5e-3), 1, 25e-3)
    answered = 0
    for step in range(200, 400):
        assert queue.refusal_s(step, 3) is None  # an empty service is always worth a try
        queue.arrive(QueuedRequest(step, 1, step + SLO_S))
        chosen = queue.next_batch(step)
        assert chosen is not None
        if chosen.requests:
            answered += 1
            queue.ended(step, queue.started(step, chosen.expected_s), 1, 5e-3)
    assert answered > 150
    assert queue.ratio == pytest.approx(1.0, abs=0.05)


@given(
    st.lists(st.tuples(st.floats(0, 2e-3), st.integers(1, 40), st.integers(0, 7)), max_size=60),
    st.integers(1, 3), st.integers(1, 16), st.sampled_from([4e-3, 2e-2, math.inf]),
)  # fmt: skip
def test_each_request_ends_once(gaps: list[tuple[float, int, int]], engines: int, max_batch: int, slo_s: float) -> None:
    at_s, arrivals = 0.0, []
    for gap_s, samples, priority in gaps:
        at_s += gap_s
        arrivals.append(Arrival(at_s, samples, priority))
    queue = ServingQueue(ServingRules(slo_s=slo_s, max_batch=max_batch), CURVE, engines)
    trace = serve_trace(arrivals, queue, engines, CURVE.seconds, slo_s)
    assert len(trace.latencies_s) + trace.refused + trace.dropped == len(arrivals)
    assert queue.num_waiting == queue.waiting_samples == 0
    largest = max((samples for _, samples, _ in gaps), default=0)
    assert all(size <= max(max_batch, largest) for size in trace.batches)
    if slo_s == math.inf:
        assert trace.refused + trace.dropped == 0


@given(st.dictionaries(st.integers(1, 256), st.floats(1e-6, 10.0), min_size=1, max_size=6))
def test_larger_batches_never_cost_less(points: dict[int, float]) -> None:
    curve = CostCurve(tuple(points.items()))
    costs = [curve.seconds(samples) for samples in range(1, 300)]
    assert all(cost > 0 for cost in costs)
    assert all(after >= before * (1 - 1e-9) for before, after in itertools.pairwise(costs))


@pytest.mark.parametrize("points", [(), ((0, 1.0),), ((1, 0.0),), ((1, math.inf),)])
def test_curves_without_meaning_are_refused(points: tuple[tuple[int, float], ...]) -> None:
    with pytest.raises(ValueError, match="`points` must"):
        CostCurve(points)


@pytest.mark.parametrize("wrong", [{"slo_s": 0.0}, {"max_batch": 0}, {"max_waiting": 0}, {"margin_frac": 1.5}])
def test_rules_without_meaning_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be"):
        ServingRules(**wrong)  # type: ignore[arg-type]

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.feed.scaling import Decision, Observation
from stoker.sim.queue import Costs, FixedWorkers, Job, simulate
from stoker.sim.resource import Clock, SharedCapacity


class Script:
    """Goes through given numbers of workers and depths, whatever happens."""

    def __init__(self, script: list[tuple[int, int]]) -> None:
        self.script = script
        self.calls = 0

    def start(self, declared_workers: int, prefetch_factor: int) -> Decision:
        return Decision(workers=declared_workers, depth=prefetch_factor, reason="")

    def decide(self, observation: Observation) -> Decision:
        workers, depth = self.script[self.calls % len(self.script)]
        self.calls += 1
        return Decision(workers=workers, depth=depth, reason="")


def test_a_shared_capacity_slows_down_what_exceeds_it():
    clock, done = Clock(), []
    cpu = SharedCapacity(clock, 2.0)
    for name in "abc":
        cpu.work(1.0, lambda name=name: done.append((name, round(clock.now_s, 9))))
    clock.run(0.9)
    cpu.work(0.4, lambda: done.append(("d", round(clock.now_s, 9))))
    clock.run(10.0)
    assert done == [("d", 1.7), ("a", 1.7), ("b", 1.7), ("c", 1.7)] or [t for _, t in done] == [1.7] * 4


@pytest.mark.parametrize(
    ("workers", "costs", "rate"),
    [
        (1, Costs(step_s=0.01, item_cpu_s=0.0, item_wait_s=0.06), 1 / 0.06),
        (3, Costs(step_s=0.01, item_cpu_s=0.0, item_wait_s=0.06), 3 / 0.06),
        (9, Costs(step_s=0.01, item_cpu_s=0.0, item_wait_s=0.06), 1 / 0.01),
        (9, Costs(step_s=0.01, item_cpu_s=0.06), 2 / 0.06),
        (2, Costs(step_s=0.0, step_cpu_s=0.02, item_cpu_s=0.04), 2 / 0.06),
    ],
)
def test_rates_are_those_of_the_bottleneck(workers: int, costs: Costs, rate: float):
    timeline = simulate(Job(costs=(costs,), duration_s=20.0), FixedWorkers(workers))
    assert timeline.rate(5.0, 20.0) == pytest.approx(rate, rel=0.03)


def test_a_store_with_few_streams_bounds_the_rate():
    costs = Costs(step_s=0.0001, item_cpu_s=0.0001, item_wait_s=0.05)
    timeline = simulate(Job(costs=(costs,), store_streams=4, duration_s=10.0), FixedWorkers(16))
    assert timeline.rate(2.0, 10.0) == pytest.approx(4 / 0.05, rel=0.03)


@settings(max_examples=60, deadline=None)
@given(
    script=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 4)), min_size=1, max_size=6),
    step_ms=st.floats(0.0, 200.0),
    cpu_ms=st.floats(0.5, 100.0),
    wait_ms=st.floats(0.0, 200.0),
    sigma=st.floats(0.0, 1.5),
    cores=st.floats(0.5, 4.0),
    items=st.integers(0, 150),
    seed=st.integers(0, 100),
)
def test_work_is_conserved(
    script: list[tuple[int, int]],
    step_ms: float,
    cpu_ms: float,
    wait_ms: float,
    sigma: float,
    cores: float,
    items: int,
    seed: int,
):
    costs = Costs(step_s=step_ms / 1e3, item_cpu_s=cpu_ms / 1e3, item_wait_s=wait_ms / 1e3, item_sigma=sigma)
    job = Job(costs=(costs,), cores=cores, items=items, duration_s=10.0, seed=seed)
    timeline = simulate(job, Script(script))
    delivered = [d.seq for d in timeline.deliveries]
    assert delivered == list(range(len(delivered)))
    assert len(set(timeline.produced)) == len(timeline.produced)
    assert set(delivered) <= set(timeline.produced) <= set(range(items))
    most, deepest = max(w for w, _ in [*script, (1, 2)]), max(d for _, d in [*script, (1, 2)])
    assert timeline.peak_workers <= most
    assert timeline.peak_held <= deepest
    for tick in timeline.ticks:
        seen = tick.observation
        assert 0.0 <= seen.input_wait_frac <= 1.0
        assert 0.0 <= seen.blocked_frac <= 1.0
        assert seen.item_cpu_s <= seen.item_wall_s + 1e-9
        assert seen.workers <= most
    last_s = timeline.ticks[-1].now_s if timeline.ticks else 0.0
    steps, times = sum(t.observation.steps for t in timeline.ticks), [d.now_s for d in timeline.deliveries]
    assert sum(time_s < last_s for time_s in times) <= steps <= sum(time_s <= last_s for time_s in times)


def test_what_one_worker_has_been_given_is_not_made_by_another_that_is_idle():
    costs = Costs(step_s=0.005, item_cpu_s=0.0, item_wait_s=0.32, item_sigma=0.3)
    best = 34 / 0.32
    shares = [
        simulate(Job(costs=(costs,), duration_s=25.0), FixedWorkers(34, depth)).rate(5.0, 25.0) / best
        for depth in (2, 4)
    ]
    # The feed with as many items that sleep as long: 92.4 and 104.9 of 106.3 batches per second, 0.87 and 0.99.
    assert shares == [pytest.approx(0.88, abs=0.02), pytest.approx(0.99, abs=0.02)]


def test_the_policy_is_asked_only_while_the_program_asks_for_a_batch():
    timeline = simulate(Job(costs=(Costs(step_s=0.7, item_cpu_s=0.1),), duration_s=20.0), FixedWorkers(1))
    behind_the_first = [tick.now_s for tick in timeline.ticks if tick.now_s > timeline.deliveries[0].now_s]
    assert behind_the_first
    assert set(behind_the_first) <= {delivery.now_s for delivery in timeline.deliveries}


def test_a_finite_epoch_is_delivered_whole():
    costs = Costs(step_s=0.001, item_cpu_s=0.001, item_sigma=1.0)
    timeline = simulate(Job(costs=(costs,), items=500, duration_s=30.0), Script([(1, 1), (5, 3), (2, 2)]))
    assert [d.seq for d in timeline.deliveries] == list(range(500))


def test_costs_out_of_order_are_refused():
    with pytest.raises(ValueError, match="`costs` must be ordered"):
        Job(costs=(Costs(from_s=1.0, step_s=0.01, item_cpu_s=0.01),))

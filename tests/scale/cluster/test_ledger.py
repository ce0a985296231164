"""The live allocator on a virtual clock: leases, moves in two steps, and what a restart leaves alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.scale.cluster import ClusterNode, DivisionConfig, GrantLedger, GrantOrder, JobReport, LedgerConfig
from stoker.scale.cluster.ledger import QueueWindow

NODES = (ClusterNode(name="a", cpus=8, gpus=2), ClusterNode(name="b", cpus=8))


@dataclass
class Job:
    """A job whose rate is in proportion to its CPUs, and which obeys: at once, or when its grace is over."""

    name: str
    need: int
    homes: tuple[str, ...] = ("a",)
    more: dict[str, object] = field(default_factory=dict[str, object])
    held: dict[str, int] = field(default_factory=dict[str, int])
    slow: bool = False
    orders: tuple[GrantOrder, ...] = ()

    def report(self) -> JobReport:
        cpus = sum(self.held.values())
        rate = min(1.0, cpus / self.need)
        window = QueueWindow(
            cpus=cpus, samples_per_s=100.0 * rate, starved_frac=0.0 if rate == 1.0 else 0.9,
            blocked_frac=max(0.0, 1.0 - self.need / cpus) if cpus else 0.0, computing_frac=rate,
        )  # fmt: skip
        return JobReport(job=self.name, held=dict(self.held), window=window, homes=self.homes, **self.more)  # type: ignore[arg-type]

    def say(self, ledger: GrantLedger, now_s: float) -> None:
        self.orders = ledger.report(self.report(), now_s)

    def obey(self) -> None:
        for order in self.orders:
            had = self.held.get(order.node, 0)
            if order.cpus >= had or not self.slow or order.kill_in_s == 0.0:
                self.held[order.node] = order.cpus
        self.held = {node: cpus for node, cpus in self.held.items() if cpus}

    @property
    def granted(self) -> int:
        return sum(order.cpus for order in self.orders)

    @property
    def total(self) -> int:
        return sum(self.held.values())


def ledger(settle_until_s: float = -1.0, **more: object) -> GrantLedger:
    found = GrantLedger(LedgerConfig(**more), settle_until_s=settle_until_s)  # type: ignore[arg-type]
    found.set_nodes(NODES)
    return found


def run(found: GrantLedger, jobs: list[Job], seconds: int, after_s: int = 0) -> int:
    for now_s in range(after_s + 1, after_s + 1 + seconds):
        for job in jobs:
            job.say(found, float(now_s))
            job.obey()
        by_node = sum((Counter(job.held) for job in jobs), Counter[str]())
        assert all(by_node[node.name] <= node.cpus for node in NODES), f"over-granted at {now_s} s: {by_node}"
    return after_s + seconds


def test_a_job_gets_what_its_queue_asks_for_and_no_more() -> None:
    found, job = ledger(), Job("one", need=6)
    run(found, [job], 5)
    assert job.held == {"a": 6}
    assert "full speed takes 6 CPUs" in job.orders[0].reason


def test_no_cpu_is_granted_before_it_is_given_back() -> None:
    found = ledger(grace_s=5.0, division=DivisionConfig(hysteresis=1.0))
    old, new = Job("old", need=16, slow=True, more={"progress_s": 9e4}), Job("new", need=16)
    now_s = run(found, [old], 4)
    assert old.total == 16
    new.say(found, now_s + 1.0)
    old.say(found, now_s + 2.0)
    # A new job is worth a trial with twice its node's share; it has none of that as long as the old one holds it.
    assert (new.granted, old.granted, old.total) == (0, 8, 16)
    assert {order.kill_in_s for order in old.orders} == {None, 5.0}
    old.say(found, now_s + 4.0)
    assert {order.kill_in_s for order in old.orders} == {None, 3.0}
    now_s = run(found, [old, new], 12, now_s + 4)
    assert (old.total, new.total) == (0, 16)


def test_a_silent_job_loses_its_grants() -> None:
    found = ledger(lease_s=10.0)
    first, second = Job("first", need=16), Job("second", need=16)
    now_s = run(found, [first], 4)
    run(found, [second], 9, now_s)
    assert second.total == 0
    run(found, [second], 4, now_s + 9)
    assert second.total == 16


def test_a_job_that_says_it_ended_is_not_waited_for() -> None:
    found = ledger()
    first, second = Job("first", need=16), Job("second", need=16)
    now_s = run(found, [first], 4)
    found.leave("first")
    run(found, [second], 2, now_s)
    assert second.total == 16


def test_jobs_that_report_to_a_new_ledger_keep_what_they_hold() -> None:
    first, second = Job("first", need=10), Job("second", need=10, more={"progress_s": 500.0})
    now_s = run(ledger(), [first, second], 10)
    before = [dict(first.held), dict(second.held)]
    assert first.total + second.total == 16
    again = ledger(settle_until_s=now_s + 10.0)
    # The second is heard of late: in between, nobody gets what it holds.
    late = run(again, [first], 6, now_s)
    assert first.held == before[0]
    run(again, [first, second], 20, late)
    assert [first.held, second.held] == before


def test_what_jobs_took_without_an_allocator_is_theirs_at_first() -> None:
    found = ledger()
    job = Job("alone", need=8, held={"b": 8})
    run(found, [job], 3)
    assert job.held == {"b": 8}


def test_cpus_that_others_have_are_granted_elsewhere() -> None:
    found = ledger(realise_s=3.0)
    job = Job("one", need=6)
    for now_s in range(10):
        job.say(found, float(now_s))
        # Something unknown to the ledger holds 5 of node a's 8 CPUs.
        job.held = {order.node: min(order.cpus, 3 if order.node == "a" else 8) for order in job.orders}
    assert job.held == {"a": 3, "b": 3}


def test_a_job_with_cpus_of_its_own_asks_for_the_rest() -> None:
    found = ledger()
    window = QueueWindow(cpus=4, samples_per_s=50.0, starved_frac=0.9, blocked_frac=0.0, computing_frac=0.5)
    orders = found.report(JobReport(job="one", own_cpus=4, window=window, homes=("a",)), 1.0)
    assert sum(order.cpus for order in orders) == 4
    enough = replace(window, samples_per_s=100.0, starved_frac=0.0, computing_frac=1.0)
    orders = found.report(JobReport(job="one", own_cpus=4, window=enough, held={"a": 0}, homes=("a",)), 3.0)
    assert sum(order.cpus for order in orders) == 0


def test_a_job_whose_own_autoscaler_asks_gets_no_more_than_that() -> None:
    found = ledger()
    asks = JobReport(job="one", wanted=5)
    assert sum(order.cpus for order in found.report(asks, 1.0)) == 5
    assert sum(order.cpus for order in found.report(replace(asks, wanted=0, held={"a": 5}), 3.0)) == 0
    # What its queue shows is a bound as well.
    window = QueueWindow(cpus=2, samples_per_s=50.0, starved_frac=0.9, blocked_frac=0.0, computing_frac=0.5)
    orders = found.report(replace(asks, wanted=9, window=window, held={"a": 2}), 5.0)
    assert sum(order.cpus for order in orders) == 4
    orders = found.report(replace(asks, wanted=3, held={"a": 4}), 7.0)
    assert sum(order.cpus for order in orders) == 3


def test_what_no_node_has_is_known_until_one_comes() -> None:
    found, small, large = ledger(), Job("small", need=4), Job("large", need=40)
    after_s = run(found, [small, large], 40)
    assert (found.unmet("small"), small.total) == (0, 4)
    assert found.unmet("large") > 0
    found.set_nodes([*NODES, ClusterNode(name="c", cpus=64)])
    run(found, [small, large], 40, after_s)
    assert (found.unmet("large"), large.total, found.unmet("nobody")) == (0, 40, 0)


def test_nodes_that_cannot_serve_a_job_are_left_to_others() -> None:
    found = ledger()
    first, second = JobReport(job="first", wanted=6, refused=("a",)), JobReport(job="second", wanted=16)
    for now_s in range(1, 20, 2):
        orders = found.report(first, float(now_s))
        first = replace(first, held={order.node: order.cpus for order in orders})
        orders = found.report(second, now_s + 1.0)
        second = replace(second, held={order.node: order.cpus for order in orders})
    assert {node: cpus for node, cpus in first.held.items() if cpus} == {"b": 6}
    assert sum(second.held.values()) == 10


def test_a_node_that_leaves_is_drained() -> None:
    found, job = ledger(), Job("one", need=6)
    now_s = run(found, [job], 3)
    found.set_nodes([replace(NODES[0], draining=True), NODES[1]])
    run(found, [job], 2, now_s)
    assert job.held == {"b": 6}


def test_a_value_that_breaks_its_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="`held` and `own_cpus` must not be negative"):
        ledger().report(JobReport(job="one", held={"a": -1}), 1.0)
    with pytest.raises(ValueError, match="`lease_s` must be positive"):
        LedgerConfig(lease_s=0.0)


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.integers(1, 20), st.integers(0, 20), st.integers(5, 40), st.booleans(), st.floats(0, 1e4)),
        min_size=1, max_size=6,
    )
)  # fmt: skip
def test_nodes_are_never_over_full_and_all_is_used(rows: list[tuple[int, int, int, bool, float]]) -> None:
    found = ledger(grace_s=4.0, lease_s=3.0)
    jobs = [
        Job(f"j{n}", need=need, slow=slow, more={"progress_s": done, "user": f"u{n % 2}"})
        for n, (need, _, _, slow, done) in enumerate(rows)
    ]
    for now_s in range(45):
        alive = [job for job, (_, begin, lasts, _, _) in zip(jobs, rows, strict=True) if begin <= now_s < begin + lasts]
        for job in jobs:
            if job not in alive and job.held:
                found.leave(job.name)
                job.held = {}
        run(found, alive, 1, now_s)
    rest = [job for job in jobs if job.held]
    wanted = min(16, sum(job.need for job in rest))
    assert sum(job.total for job in rest) <= 16
    late = run(found, rest, 12, 45)
    assert sum(job.total for job in rest) >= wanted
    before = [dict(job.held) for job in rest]
    run(found, rest, 10, late)
    assert [job.held for job in rest] == before, "nothing moves without a cause"

"""When ranks are averaged: properties over drawn facts, and the cases that the constants stand for."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.train.averaging.policy import FORMS, AveragingPolicy, AveragingRules, RoundFacts

RANKS = 8


@st.composite
def drawn_rules(draw: st.DrawFn) -> AveragingRules:
    low = draw(st.floats(0, 1))
    return AveragingRules(
        form=draw(st.sampled_from(FORMS)),
        warm_up_steps=draw(st.integers(0, 30)),
        low=low,
        high=low + draw(st.floats(0.01, 2)),
        max_period=draw(st.integers(1, 20)),
        rounds=draw(st.integers(1, 4)),
        settling_steps=draw(st.integers(0, 8)),
    )


def facts(agreement: float | None = 0.5, ratio: float = 16.0, looked_at: int = 0) -> RoundFacts:
    return RoundFacts(agreement=agreement, compute_s=0.5, exchange_s=0.5 * ratio, looked_at=looked_at)


ROUNDS = st.lists(
    st.builds(facts, st.one_of(st.none(), st.floats(0, 1)), st.floats(0, 1000), st.integers(0, 300)),
    min_size=20,
    max_size=40,
)


def run(policy: AveragingPolicy, steps: int, agreement: float, ratio: float = 16.0) -> list[int]:
    """Steps after which all ranks were averaged."""
    found: list[int] = []
    for _ in range(steps):
        if policy.step() == "all":
            policy.averaged(facts(agreement, ratio))
            found.append(policy.steps)
    return found


@given(drawn_rules(), ROUNDS)
@settings(max_examples=40)
def test_no_period_is_longer_than_its_bounds(rules: AveragingRules, rounds: list[RoundFacts]) -> None:
    policy = AveragingPolicy(RANKS, rules)
    for each in rounds:
        while policy.step() != "all":
            assert policy.since < policy.period
        assert policy.since <= policy.period <= max(1, rules.max_period)
        policy.averaged(each)
        assert 1 <= policy.period <= policy.bound <= rules.max_period
        assert policy.since == 0


@given(drawn_rules(), ROUNDS)
@settings(max_examples=40)
def test_the_same_facts_give_the_same_decisions(rules: AveragingRules, rounds: list[RoundFacts]) -> None:
    ranks = [AveragingPolicy(RANKS, rules) for _ in range(2)]
    for each in rounds:
        scopes = {policy.step() for policy in ranks}
        assert len(scopes) == 1
        if scopes == {"all"}:
            for policy in ranks:
                policy.averaged(each)
        assert len({(policy.period, policy.reason, policy.filters) for policy in ranks}) == 1


@given(drawn_rules())
@settings(max_examples=40)
def test_the_warm_up_averages_each_step(rules: AveragingRules) -> None:
    policy = AveragingPolicy(RANKS, rules)
    assert run(policy, rules.warm_up_steps, 1.0) == list(range(1, rules.warm_up_steps + 1))


@given(st.integers(2, 64))
@settings(max_examples=20)
def test_unrelated_changes_keep_a_period_at_any_number_of_ranks(ranks: int) -> None:
    policy = AveragingPolicy(ranks)
    run(policy, 250, 1.0)
    before = policy.period
    run(policy, 200, 1.0 / ranks)
    assert policy.period == before == 16


def test_agreement_doubles_the_period_and_its_lack_halves_it() -> None:
    policy = AveragingPolicy(RANKS)
    run(policy, 200, 0.9)
    assert policy.period == 16
    run(policy, 400, 0.02)
    assert policy.period == 1


def test_between_the_bounds_nothing_changes() -> None:
    policy = AveragingPolicy(RANKS)
    run(policy, 24, 0.9)
    run(policy, 100, 0.9 / RANKS)
    period = policy.period
    assert 1 < period < 16
    run(policy, 400, 0.9 / RANKS)
    assert policy.period == period


@given(st.floats(1e-4, 1e4), st.floats(1, 100))
@settings(max_examples=40)
def test_a_dearer_exchange_never_makes_the_bound_smaller(ratio: float, times: float) -> None:
    bounds: list[int] = []
    for each in (ratio, ratio * times):
        policy = AveragingPolicy(RANKS, AveragingRules(max_period=1 << 20, growth_frac=float(1 << 20)))
        policy.step()
        policy.averaged(facts(0.5, each))
        bounds.append(policy.bound)
        assert policy.bound == 1 << max(0, math.ceil(math.log2(each / 0.1) - 1e-9)) or policy.bound == 1 << 20
    assert bounds[0] <= bounds[1]


@given(st.integers(1, 400))
@settings(max_examples=20)
def test_a_young_training_has_short_periods(steps: int) -> None:
    policy = AveragingPolicy(RANKS)
    run(policy, steps, 1.0)
    assert policy.period <= max(1, steps / 8)


def test_a_cheap_exchange_is_made_in_each_step() -> None:
    assert run(AveragingPolicy(RANKS), 200, 1.0, ratio=0.05) == list(range(1, 201))


def test_steps_before_an_expected_evaluation_are_averaged() -> None:
    policy = AveragingPolicy(RANKS)
    looked_at, found = 0, dict[int, str]()
    for step in range(1, 401):
        if policy.step() == "all":
            found[step] = policy.reason
            policy.averaged(facts(0.9, looked_at=looked_at))
        if step % 100 == 0:
            looked_at = step
    settled = [step for step, reason in found.items() if reason.startswith("before")]
    assert settled == [*range(198, 201), *range(298, 301), *range(398, 401)]
    assert max(b - a for a, b in zip(sorted(found)[20:], sorted(found)[21:], strict=False)) == 16


def test_programs_that_look_often_are_not_averaged_for_it() -> None:
    policy = AveragingPolicy(RANKS)
    for step in range(1, 301):
        if policy.step() == "all":
            assert not policy.reason.startswith("before")
            policy.averaged(facts(0.9, looked_at=step - 1))
    assert policy.period == 16


def test_an_average_before_its_time_says_nothing_about_the_period() -> None:
    policy = AveragingPolicy(RANKS)
    run(policy, 200, 0.9)
    for _ in range(50):
        policy.step()
        policy.averaged(facts(0.0))
    assert policy.period == 16


def test_one_rank_is_not_averaged() -> None:
    assert run(AveragingPolicy(1), 100, 1.0) == []


def test_a_fixed_period_is_kept() -> None:
    rules = AveragingRules(fixed_period=6, max_period=16, warm_up_steps=0, settling_steps=0)
    assert run(AveragingPolicy(RANKS, rules), 40, 0.0, 0.0) == [6, 12, 18, 24, 30, 36]


def test_islands_are_averaged_in_between() -> None:
    policy = AveragingPolicy(2, AveragingRules(form="islands"))
    run(policy, 300, 1.0)
    scopes: list[str] = []
    for _ in range(32):
        scopes.append(policy.step())
        if scopes[-1] == "all":
            policy.averaged(facts(1.0))
    assert (scopes.count("all"), scopes.count("island")) == (2, 6)


def test_means_are_filtered_where_ranks_agree() -> None:
    policy = AveragingPolicy(RANKS, AveragingRules(form="bmuf"))
    assert not policy.filters
    run(policy, 300, 0.9)
    assert policy.filters
    run(policy, 300, 1 / RANKS)
    assert not policy.filters


@pytest.mark.parametrize(
    ("given_rules", "said"),
    [
        ({"form": "median"}, "`form` must be one of mean, bmuf, islands, got 'median'"),
        ({"max_period": 0}, "`max_period` must be at least 1, got 0"),
        ({"low": 2.0}, "`low` must be below `high` (1.6), got 2"),
        ({"exchange_frac": 0.0}, "`exchange_frac` must be above 0, got 0; no period is long enough for that"),
        ({"smoothing": 1.0}, "`smoothing` must be below 1, got 1"),
        ({"high": math.inf}, "`high` must be a finite number of at least 0, got inf"),
    ],
)
def test_values_out_of_range_are_refused(given_rules: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match="^" + said.replace("(", r"\(").replace(")", r"\)") + "$"):
        AveragingRules(**given_rules)  # type: ignore[arg-type]

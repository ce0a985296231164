import pytest

from stoker.cache.policies import Freshness, PageLife, Rule
from stoker.cache.rules_text import rules_of, write_rule


def test_a_run_keeps_what_it_saw_and_asks_for_what_it_did_not() -> None:
    rule = Rule(max_age_s=10.0, pinned_since=100.0)
    assert rule.is_fresh(100.0, 5000.0)
    assert rule.is_fresh(99.0, 105.0)  # young enough without the run
    assert not rule.is_fresh(99.0, 5000.0)
    assert not rule.is_fresh(6000.0, 5000.0)  # from a clock that was ahead


def test_always_is_always() -> None:
    assert not Rule(freshness=Freshness.ALWAYS, pinned_since=0.0).is_fresh(1.0, 2.0)


@pytest.mark.parametrize("text", ["s3://a/* immutable", "s3://a/* always ttl=60s", "s3://* 5s quota=100", "gs://* off"])
def test_rules_are_written_as_they_are_read(text: str) -> None:
    assert write_rule(rules_of(text)[0]) == text


def test_a_rules_own_texts_come_before_the_caches() -> None:
    own, *others = rules_of("s3://a/* 60s ttl=1h")
    assert (own.max_age_s, own.ttl_s, own.life) == (60.0, 3600.0, PageLife.TIMED)
    assert tuple(others) == rules_of(None)

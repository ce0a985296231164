import pytest

from stoker.cache.policies import Freshness, Rule
from stoker.cache.rules_text import is_rules, parse_rules


def test_rules_in_their_order() -> None:
    text = "s3://data/* immutable; https://* 5min ttl=1h quota=2GB;\n s3://live/* always\ns3://scratch/* off; "
    assert parse_rules(text) == (
        Rule(pattern="s3://data/*", freshness=Freshness.IMMUTABLE),
        Rule(pattern="https://*", max_age_s=300.0, ttl_s=3600.0, quota_bytes=2_000_000_000),
        Rule(pattern="s3://live/*", freshness=Freshness.ALWAYS),
        Rule(pattern="s3://scratch/*", cached=False),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no rule"),
        ("bucket/* immutable", "must begin with a protocol"),
        ("s3://b/*", "must have `immutable`"),
        ("s3://b/* often", "must have `immutable`"),
        ("s3://b/* 60s size=3", "must be `ttl=TIME`"),
        ("s3://b/* 60s ttl=long", "is not a time"),
    ],
)
def test_what_is_no_rule_is_said(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_rules(text)
    with pytest.raises(ValueError, match=said):
        is_rules(text)

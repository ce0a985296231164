import pytest

from stoker.core.cache_rules import RuleText, is_rules, parse_rules


def test_rules_in_their_order() -> None:
    text = "s3://data/* immutable; https://* 5min ttl=1h quota=2GB;\n s3://live/* always\ns3://scratch/* off; "
    assert parse_rules(text) == (
        RuleText("s3://data/*", "immutable"),
        RuleText("https://*", "max-age", 300.0, 3600.0, 2_000_000_000),
        RuleText("s3://live/*", "always"),
        RuleText("s3://scratch/*", "off"),
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
    assert not is_rules(text)

"""Parses rules: ``s3://data/train/* immutable; https://* 5min ttl=1h``."""

from __future__ import annotations

import functools
from dataclasses import replace

from stoker.cache.policies import DEFAULT_RULES, Freshness, Rule
from stoker.core.units import parse_bytes, parse_seconds

FORM = "rules such as `s3://data/* immutable; https://* 5min`, or `auto`"
"""What a rule must be, to complete "must be ..."."""
_EXPECTED = "`immutable`, `always`, `off` or a time such as `60s`"


@functools.cache
def rules_of(text: str | None) -> tuple[Rule, ...]:
    """The rules of a text, followed by the cache's own.

    Raises:
        ValueError: a rule cannot be understood.
    """
    return (*(parse_rules(text) if text else ()), *DEFAULT_RULES)


def parse_rules(text: str) -> tuple[Rule, ...]:
    """Rules of a text, in its order, separated by semicolons or line ends.

    Raises:
        ValueError: a rule cannot be understood.
    """
    entries = [entry.strip() for entry in text.replace("\n", ";").split(";")]
    rules = tuple(_parse_rule(entry) for entry in entries if entry)
    if not rules:
        raise ValueError(f"`{text}` holds no rule")
    return rules


def _parse_rule(entry: str) -> Rule:
    pattern, _, rest = entry.partition(" ")
    policy, *options = rest.split() or [""]
    if "://" not in pattern and pattern != "*":
        raise ValueError(f"`{pattern}` must begin with a protocol, such as `s3://bucket/*`")
    rule = Rule(pattern=pattern)
    if policy == "off":
        rule = replace(rule, cached=False)
    elif policy in ("immutable", "always"):
        rule = replace(rule, freshness=Freshness(policy))
    else:
        try:
            rule = replace(rule, max_age_s=parse_seconds(policy))
        except ValueError:
            raise ValueError(f"`{entry}` must have {_EXPECTED} after the pattern") from None
    for option in options:
        name, _, value = option.partition("=")
        if name == "ttl":
            rule = replace(rule, ttl_s=parse_seconds(value))
        elif name == "quota":
            rule = replace(rule, quota_bytes=parse_bytes(value))
        else:
            raise ValueError(f"`{option}` must be `ttl=TIME` or `quota=SIZE`")
    return rule


def write_rule(rule: Rule) -> str:
    """The text of a rule."""
    policy = f"{rule.max_age_s:g}s" if rule.freshness is Freshness.MAX_AGE else rule.freshness.value
    if not rule.cached:
        policy = "off"
    ttl = f" ttl={rule.ttl_s:g}s" if rule.ttl_s is not None else ""
    quota = f" quota={rule.quota_bytes}" if rule.quota_bytes is not None else ""
    return f"{rule.pattern} {policy}{ttl}{quota}"


def is_rules(value: object) -> bool:
    """Whether a value is a text of rules, or rules.

    Raises:
        ValueError: a rule of a text cannot be understood.
    """
    return bool(parse_rules(value)) if isinstance(value, str) else isinstance(value, tuple)

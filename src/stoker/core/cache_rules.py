"""Rules of the data cache as people write them: ``s3://data/train/* immutable; https://* 5min ttl=1h``.

Only the text is understood here; what a rule means for a page is said by the cache.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from stoker.core.units import parse_bytes, parse_seconds

FORM = "rules such as `s3://data/* immutable; https://* 5min`, or `auto`"
"""As the end of "must be ..."."""
_EXPECTED = "`immutable`, `always`, `off` or a time such as `60s`"


class RuleText(NamedTuple):
    """A rule in words.

    Attributes:
        pattern: shell pattern over ``protocol://path``.
        policy: when the store is asked again, or ``off`` to leave the paths alone.
        max_age_s: for ``max-age`` (seconds).
        ttl_s: pages go after so many seconds; None keeps them.
        quota_bytes: most bytes under this rule; None for no bound of its own.
    """

    pattern: str
    policy: Literal["immutable", "always", "max-age", "off"]
    max_age_s: float = 60.0
    ttl_s: float | None = None
    quota_bytes: int | None = None


def parse_rules(text: str) -> tuple[RuleText, ...]:
    """Rules of a text, in its order, separated by semicolons or line ends.

    Raises:
        ValueError: a rule cannot be understood.
    """
    entries = [entry.strip() for entry in text.replace("\n", ";").split(";")]
    rules = tuple(_parse_rule(entry) for entry in entries if entry)
    if not rules:
        raise ValueError(f"`{text}` holds no rule")
    return rules


def _parse_rule(entry: str) -> RuleText:
    pattern, _, rest = entry.partition(" ")
    policy, *options = rest.split() or [""]
    if "://" not in pattern and pattern != "*":
        raise ValueError(f"`{pattern}` must begin with a protocol, such as `s3://bucket/*`")
    rule = RuleText(pattern, "max-age")
    if policy in ("immutable", "always", "off"):
        rule = rule._replace(policy=policy)
    else:
        try:
            rule = rule._replace(max_age_s=parse_seconds(policy))
        except ValueError:
            raise ValueError(f"`{entry}` must have {_EXPECTED} after the pattern") from None
    for option in options:
        name, _, value = option.partition("=")
        if name == "ttl":
            rule = rule._replace(ttl_s=parse_seconds(value))
        elif name == "quota":
            rule = rule._replace(quota_bytes=parse_bytes(value))
        else:
            raise ValueError(f"`{option}` must be `ttl=TIME` or `quota=SIZE`")
    return rule


def is_rules(value: object) -> bool:
    """Whether a value is a text of rules."""
    if not isinstance(value, str):
        return False
    try:
        parse_rules(value)
    except ValueError:
        return False
    return True


def checked_rules(text: str) -> str:
    """The text, if it is one of rules.

    Raises:
        ValueError: a rule cannot be understood.
    """
    parse_rules(text)
    return text

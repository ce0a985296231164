"""The rule for a path of one store, found fast: rules for other protocols are left out once."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Sequence

from stoker.cache.policies import Rule
from stoker.cache.sources.namespaces import ALIASES

_MAGIC = re.compile(r"[*?[]")


class Rules:
    """Rules as they apply to the paths of one filesystem."""

    def __init__(self, rules: Sequence[Rule], protocol: str) -> None:
        """Drops rules that cannot match.

        Args:
            rules: the first that fits counts; what no rule fits is cached under the defaults of a rule.
            protocol: of the filesystem.
        """
        # Paths of web servers keep their protocol, which is one of two.
        prefix = "" if protocol in ("http", "https") else f"{ALIASES.get(protocol, protocol)}://"
        fitting = [(number, rule) for number, rule in enumerate(rules) if _may_fit(rule.pattern, prefix)]
        self._prefix = prefix
        self._rules = [(re.compile(fnmatch.translate(rule.pattern)).match, number, rule) for number, rule in fitting]
        self._only = fitting[0] if fitting and fitting[0][1].pattern in ("*", f"{prefix}*") else None
        self._default = (len(rules), Rule())

    def of(self, path: str) -> tuple[int, Rule]:
        """The rule for a path, and its number.

        Args:
            path: as the filesystem strips it; one that keeps its protocol is matched as it is.
        """
        if self._only is not None:
            return self._only
        url = path if "://" in path else self._prefix + path
        for matches, number, rule in self._rules:
            if matches(url):
                return number, rule
        return self._default


def _may_fit(pattern: str, prefix: str) -> bool:
    magic = _MAGIC.search(pattern)
    literal = pattern[: magic.start()] if magic else pattern
    return literal.startswith(prefix) or prefix.startswith(literal)

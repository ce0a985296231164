"""What is said of a version when it starts."""

from __future__ import annotations

import math

import pytest

from stoker.run.serving.starting import broken_promise
from stoker.scale.serving import ServingRules


@pytest.mark.parametrize(
    ("slo_s", "said"),
    [
        (0.1, "one sample takes 300 ms, --slo is 100 ms: nearly every request will be refused"),
        (1e-6, "one sample takes 300 ms, --slo is 1.00 us: nearly every request will be refused"),
        (0.5, ""),
        (math.inf, ""),
    ],
)
def test_a_promise_that_cannot_be_kept_is_said(slo_s: float, said: str) -> None:
    assert broken_promise([(1, 0.3), (32, 0.4)], ServingRules(slo_s=slo_s)) == said

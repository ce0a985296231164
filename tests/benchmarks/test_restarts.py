from __future__ import annotations

import math

import pytest

pytest.importorskip("torch")

from benchmarks.restarts import chance


def test_the_chance_of_so_few_successes():
    """Against a table of Fisher's exact test, and where it is certain."""
    assert chance(1, 9, 10) == pytest.approx((10 * 10 + 1 * 0 + math.comb(10, 0) * math.comb(10, 10)) / 184756)
    assert chance(10, 10, 10) == 1.0
    assert chance(0, 0, 10) == 1.0
    assert chance(4, 8, 10) == pytest.approx(0.0849, abs=1e-3)
    assert chance(8, 4, 10) > 0.9

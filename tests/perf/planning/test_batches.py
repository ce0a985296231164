"""Features at other sizes of the batch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.perf.features.records import StepFeatures
from stoker.perf.planning.batches import Batches, on_line, scaled
from tests.perf.planning.toys import features

SIZE = st.integers(1, 4096)
FIGURES = ("flops", "eager_bytes", "fused_bytes", "activation_peak_bytes", "peak_bytes", "input_bytes")


def figures(found: StepFeatures) -> list[float]:
    return [getattr(found, name) for name in FIGURES]


@given(SIZE, SIZE)
def test_of_a_linear_layer_both_ways_are_exact(traced: int, wanted: int) -> None:
    exact = features(wanted)
    assert figures(scaled(features(traced), wanted)) == pytest.approx(figures(exact))
    assert scaled(features(traced), wanted).operations[0].dims == exact.operations[0].dims
    line = on_line(features(traced), features(2 * traced), wanted)
    assert figures(line) == pytest.approx(figures(exact))
    assert line.batch_size == wanted
    assert line.operations[1] == exact.operations[1]


def test_two_traces_of_the_same_operations_make_a_line() -> None:
    assert Batches(features(8), features(16)).is_exact
    assert not Batches(features(8)).is_exact
    other = features(16)
    assert not Batches(features(8), type(other).from_json(other.to_json().replace(b'"mm"', b'"bmm"'))).is_exact


def test_what_was_traced_is_given_back() -> None:
    one, two = features(8), features(16)
    batches = Batches(two, one)
    assert batches.first is one
    assert batches.at(16) is two
    assert batches.at(4) is batches.at(4)
    assert "scaled from a batch of 8 to 4" in Batches(one).at(4).assumptions


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="`traced` must hold one trace or more"):
        Batches()
    with pytest.raises(ValueError, match="`batch_size` must be at least 1, got 0"):
        Batches(features()).at(0)

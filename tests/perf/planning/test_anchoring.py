"""A measured step moves the plans of its program."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from stoker.perf.planning.batches import Batches
from stoker.perf.planning.pricing import anchored, predicted
from stoker.perf.planning.space import Candidate
from stoker.perf.prediction.anchor import Anchor
from stoker.perf.strategy import Strategy
from tests.perf.planning.toys import features, offer

BATCHES = Batches(features(512), features(1024), own=512)
ALONE = Candidate(offer=offer("A100-80GB-SXM", 1), gpus=1, strategy=Strategy(), micro_batch=512)
FREE_S = predicted()(BATCHES.at(512), ALONE).seconds
SLOW = Anchor(gpu="A100-80GB-SXM", gpus=1, seconds=2 * FREE_S, low=1.9 * FREE_S, high=2.1 * FREE_S, batch_size=512)


def test_the_measured_step_is_met_and_other_sizes_follow() -> None:
    moved = anchored(SLOW, BATCHES)
    assert moved(BATCHES.at(512), ALONE).seconds == pytest.approx(SLOW.seconds, rel=0.02)
    larger = replace(ALONE, micro_batch=4096)
    free = predicted()(BATCHES.at(4096), larger)
    # Most of the small step is its optimizer, which therefore is slow; of the large one it is a smaller part.
    assert 1.2 * free.seconds < moved(BATCHES.at(4096), larger).seconds < 2 * free.seconds


def test_the_traced_step_of_the_measurement_counts_whatever_the_batch() -> None:
    """An anchor that knows what it measured: half the batch, and as slow."""
    half = predicted()(BATCHES.at(256), replace(ALONE, micro_batch=256)).seconds
    known = replace(SLOW, seconds=2 * half, low=2 * half, high=2 * half, batch_size=None, features=BATCHES.at(256))
    assert anchored(known, BATCHES)(BATCHES.at(256), ALONE).seconds == pytest.approx(2 * half)
    assert anchored(known, BATCHES)(BATCHES.at(512), ALONE).seconds == pytest.approx(2 * FREE_S, rel=0.1)


def test_another_gpu_is_slower_too_and_its_interval_narrower() -> None:
    elsewhere = replace(ALONE, offer=offer("H100-SXM", 1))
    free, moved = predicted()(BATCHES.at(512), elsewhere), anchored(SLOW, BATCHES)(BATCHES.at(512), elsewhere)
    assert moved.seconds > 1.3 * free.seconds
    assert moved.high / moved.low < free.high / free.low


def test_a_step_of_another_program_is_refused_before_anything_is_priced() -> None:
    """It was accepted without a word, and moved every time by what another model does."""
    weights = structs.replace(features().weights, dense_count=2_000_000)
    other = structs.replace(features(512), weights=weights, name="other.py")
    said = (
        r"`anchor` must be a measured step of toy, whose model has 1,000,000 parameters, got one of other.py with "
        r"2,000,000; measure this program with `stoker profile`"
    )
    with pytest.raises(ValueError, match=said):
        anchored(replace(SLOW, features=other), BATCHES)
    anchored(replace(SLOW, features=features(64)), BATCHES)


def test_a_step_measured_on_a_processor_changes_nothing() -> None:
    moved = anchored(replace(SLOW, gpu="cpu"), BATCHES)(BATCHES.at(64), ALONE)
    assert moved.seconds == predicted()(BATCHES.at(64), ALONE).seconds
    assert any("not used" in reason for reason in moved.reasons)

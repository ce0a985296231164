"""Candidates: each once, and none that cannot be divided."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.perf.planning.space import FAMILIES, LATE, Space, candidates, micro_batches
from tests.perf.planning.toys import offer


@given(st.integers(1, 600), st.integers(1, 40), st.sampled_from([1, 4, 8]), st.booleans())
def test_micro_batch_x_accumulation_x_replicas_is_the_global_batch(
    batch: int, max_gpus: int, gpus: int, grows: bool
) -> None:
    space = Space(offers=(offer(gpus=gpus),), batch=batch, grows=grows, max_gpus=max_gpus, embeddings=True)
    found = list(candidates(space))
    assert len({(c.gpus, c.strategy, c.micro_batch) for c in found}) == len(found)
    for candidate in found:
        assert candidate.global_batch == (batch * candidate.replicas if grows else batch)
        assert candidate.gpus <= max_gpus
        assert candidate.strategy.tensor <= gpus
        assert candidate.family in FAMILIES
        assert candidate.machines.gpus_per_node == gpus


@given(st.integers(1, 10_000_000))
def test_micro_batches_divide_a_share_and_span_it(own: int) -> None:
    sizes = micro_batches(own)
    assert sizes[0] == own
    assert sizes[-1] == 1
    assert len(sizes) <= 6
    assert all(own % size == 0 for size in sizes)
    assert all(small <= 0.6 * large for large, small in itertools.pairwise(sizes))


def test_every_family_has_candidates_where_there_is_room() -> None:
    space = Space(offers=(offer(),), batch=64, max_gpus=64, embeddings=True)
    assert {candidate.family for candidate in candidates(space)} == set(FAMILIES)
    plain = Space(offers=(offer(),), batch=64, max_gpus=8)
    assert "PEARL" not in {candidate.family for candidate in candidates(plain)}
    assert "DDP over servers" not in {candidate.family for candidate in candidates(plain)}


def test_factors_are_considered_on_request_alone() -> None:
    space = Space(offers=(offer(),), batch=64, max_gpus=64, embeddings=True, late=True)
    assert {candidate.family for candidate in candidates(space)} == set(space.families) == {*FAMILIES, LATE}
    assert all(c.strategy.tensor == c.strategy.pipeline == 1 for c in candidates(space) if c.family == LATE)


def test_servers_are_paid_for_whole() -> None:
    space = Space(offers=(offer(per_hour=8.0),), batch=64, max_gpus=16)
    paid = {candidate.gpus: candidate.per_hour for candidate in candidates(space)}
    assert paid == {1: 8.0, 2: 8.0, 4: 8.0, 8: 8.0, 16: 16.0}


def test_a_space_can_begin_beyond_a_number_of_gpus() -> None:
    space = Space(offers=(offer(),), batch=64, max_gpus=32, beyond=8)
    assert {candidate.gpus for candidate in candidates(space)} == {16, 32}


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="`batch` must be at least 1, got 0"):
        Space(offers=(), batch=0)
    with pytest.raises(ValueError, match="`max_gpus` must be at least 1, got -1"):
        Space(offers=(), batch=1, max_gpus=-1)

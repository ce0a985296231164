# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (the user's dataset is untyped)
"""The differential probe: are a loader's items pure, that is, independent of order, process and history?

Two workers forked from the same state make the same few samples with the same seeds. One has made them in order,
beside its first batch; the other, thrown away afterwards, first makes them in reverse with *other* seeds (where there
is no reverse, another batch between them) and only then with the right ones. A counter, a private generator, a cache of
random results, a dependence on the worker's number or on what was made before gives different bytes. What a probe can
not see (writes to the outside, state the training loop changes) is ruled out by the declared workers, which see a copy
of the dataset anyway, or by ``objects`` where none are declared.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

from stoker.core import seeds
from stoker.feed import streams
from stoker.feed.fetch import SampleError, fetch_samples, takes_whole_batches
from stoker.feed.pack import digest
from stoker.feed.program import Iteration, Program, WorkItem

NUM_SAMPLES = 4
"""Samples that are compared; each costs the throwaway worker two."""

Role = Literal["beside", "apart"]
"""Which of the two workers: the one that makes the samples in order, or the one that makes them in reverse first."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Digests of the same work, made by one of the two workers."""

    samples: tuple[bytes, ...]
    collated: bytes
    drew: bool
    """Whether the samples drew from the global random streams."""


NOTHING = Evidence((), b"", drew=False)
"""What a worker says that could not begin."""


def compare(beside: Evidence, apart: Evidence) -> str:
    """Why the items are not pure, as half a sentence; empty when both workers agree."""
    for number, (one, other) in enumerate(zip(beside.samples, apart.samples, strict=False)):
        if one != other:
            return f"sample {number} of the first batch differs when it is made again in another order and process"
    if len(beside.samples) != len(apart.samples):
        return "the number of samples differs when they are made again in another process"
    if beside.collated != apart.collated:
        return "`collate_fn` gives another batch for the same samples in another process"
    return ""


def run_beside(program: Program, iteration: Iteration, item: WorkItem, *, drew: bool) -> Evidence:
    """Digests made by a worker right after its first batch; leaves its random streams as they were."""
    states = streams.save()
    try:
        return _evidence(program, iteration, _part(program, item), drew=drew, reverse=False)
    finally:
        streams.restore(states)


def run_apart(program: Program, iteration: Iteration, item: WorkItem, other: WorkItem | None = None) -> Evidence:
    """Digests made by a throwaway worker that has seen the samples before, in reverse and under other seeds.

    Args:
        program: what it runs.
        iteration: its seeds.
        item: what both workers make.
        other: another item of the order, if one is known.
    """
    part = _part(program, item)
    elsewhere = Iteration(ordinal=iteration.ordinal, base_seed=iteration.base_seed ^ 1, tier=iteration.tier)
    _evidence(program, elsewhere, part, drew=False, reverse=True)
    if _has_no_reverse(program, part):
        # A counter is told by having been asked once more than the other worker's, a dependence on the sample before
        # by another one before.
        _evidence(program, elsewhere, part, drew=False, reverse=True)
        if other is not None:
            _evidence(program, elsewhere, _part(program, other), drew=False, reverse=True)
    return _evidence(program, iteration, part, drew=False, reverse=True)


def _has_no_reverse(program: Program, part: WorkItem) -> bool:
    """Whether it is one unit, or two, which again and again are in the same order as their reverse."""
    return not program.auto_collation or takes_whole_batches(program.dataset) or len(part.indices) <= 2


def _part(program: Program, item: WorkItem) -> WorkItem:
    if not program.auto_collation:
        return item
    if takes_whole_batches(program.dataset):
        return item  # its unit is the whole batch
    bad = set(item.skip) | set(item.replace)  # samples that ended a worker would end this one too
    good = [index for position, index in enumerate(item.indices) if position not in bad]
    return WorkItem(indices=good[:NUM_SAMPLES], start=item.start)


def _evidence(program: Program, iteration: Iteration, part: WorkItem, *, drew: bool, reverse: bool) -> Evidence:
    base, ordinal = iteration.base_seed, iteration.ordinal
    whole = not program.auto_collation or takes_whole_batches(program.dataset)
    picture: tuple[Any, ...] = ()

    def seed(position: int, index: object) -> None:
        nonlocal picture
        value = seeds.batch_seed(base, ordinal, 0)
        if position >= 0:
            value = seeds.sample_seed(base, ordinal, part.start + position, index)
        streams.seed(value)
        picture = streams.mark()

    made: dict[int, Any] = {}
    digests: dict[int, bytes] = {}
    positions = [0] if whole else list(range(len(part.indices)))
    for position in reversed(positions) if reverse else positions:
        one = part if whole else WorkItem(indices=[part.indices[position]], start=part.start + position)
        try:
            samples = fetch_samples(program, one, _ignore, seed)
            made[position] = samples if whole else samples[0]
            digests[position] = digest(made[position])
        except SampleError as error:
            digests[position] = _raised(error.__cause__)
        except Exception as error:  # what can't be pickled can't be compared
            digests[position] = _raised(error)
        drew = drew or streams.drawn_since(picture)
    collated, drew_collating = _collate(program, made, whole, lambda: seed(-1, None), lambda: picture)
    return Evidence(tuple(digests[p] for p in positions), collated, drew or drew_collating)


def _collate(program: Program, made: dict[int, Any], whole: bool, seed: Any, picture: Any) -> tuple[bytes, bool]:
    if not made:
        return b"", False
    seed()
    try:
        batch = made[0] if whole else [made[position] for position in sorted(made)]
        collated = digest(program.collate_fn(batch))
    except Exception as error:
        collated = _raised(error)
    return collated, streams.drawn_since(picture())


def _raised(error: BaseException | None) -> bytes:
    return blake2b(f"raised {type(error).__qualname__}".encode(), digest_size=16).digest()


def _ignore(position: int) -> None:
    pass

# (the user's dataset is untyped)
"""The differential probe: are a loader's items pure, that is, independent of order, process and history?

Two workers forked from the same state make the same few samples with the same seeds. One makes them in order, right
after its first batch; the other, discarded afterwards, first makes them in reverse with *other* seeds (if there is no
reverse, with another batch in between) and only then with the right ones. A counter, a private generator, a cache of
random results, a dependence on the worker's number or on earlier samples gives different bytes. A probe cannot see
external writes or state that the training loop changes: declared workers hold a copy of the dataset anyway, and
without them ``objects`` rules such things out.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

from stoker.core import seeds
from stoker.core.mishaps import is_own
from stoker.feed import streams
from stoker.feed.fetch import SampleError, collate, fetch_samples, takes_whole_batches
from stoker.feed.program import Iteration, Program, WorkItem
from stoker.feed.transport.pack import digest, pack

NUM_SAMPLES = 4
"""Samples that are compared; the throwaway worker makes each at least twice."""

LARGE_SAMPLE_BYTES = 1 << 22
"""Samples of this size or more are made by one probing worker at a time, and only if there is memory for them."""

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
"""Evidence from a worker that could not begin."""


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


def run_apart(
    program: Program,
    iteration: Iteration,
    item: WorkItem,
    other: WorkItem | None = None,
    when_large: Callable[[int], None] = lambda size_bytes: None,
) -> Evidence:
    """Digests made by a throwaway worker that has made the samples before, in reverse and under other seeds.

    Args:
        program: what it runs.
        iteration: its seeds.
        item: what both workers make.
        other: another item of the order, if one is known.
        when_large: called with the size of the first sample, if it is large, before any other is made; no sample is
            held meanwhile. It may wait, and raise to end the probe.
    """
    part = _part(program, item)
    elsewhere = Iteration(ordinal=iteration.ordinal, base_seed=iteration.base_seed ^ 1, tier=iteration.tier)
    _make_first(program, elsewhere, part, when_large)
    if _has_no_reverse(program, part):
        # One more pass than in the other worker exposes a counter; another batch in between exposes a dependence on
        # the preceding sample.
        _make(program, elsewhere, part)
        if other is not None:
            _make(program, elsewhere, _part(program, other))
    return _evidence(program, iteration, part, drew=False, reverse=True)


def _has_no_reverse(program: Program, part: WorkItem) -> bool:
    """Whether the item has one unit or two, which have the same predecessors in reverse when they are repeated."""
    return not program.auto_collation or takes_whole_batches(program.dataset) or len(part.indices) <= 2


def _part(program: Program, item: WorkItem) -> WorkItem:
    if not program.auto_collation:
        return item
    if takes_whole_batches(program.dataset):
        return item  # its unit is the whole batch
    bad = set(item.skip) | set(item.replace)  # samples that killed a worker would kill this one too
    good = [index for position, index in enumerate(item.indices) if position not in bad]
    return WorkItem(indices=good[:NUM_SAMPLES], start=item.start)


class _Run:
    """Makes the samples of an item one by one, each under its seed, and their batch."""

    def __init__(self, program: Program, iteration: Iteration, part: WorkItem) -> None:
        self._program = program
        self._iteration = iteration
        self._part = part
        self.whole = not program.auto_collation or takes_whole_batches(program.dataset)
        self.positions = [0] if self.whole else list(range(len(part.indices)))
        self._picture: tuple[Any, ...] = ()
        self.drew = False

    def _seed(self, position: int, index: object) -> None:
        base, ordinal = self._iteration.base_seed, self._iteration.ordinal
        value = seeds.batch_seed(base, ordinal, 0)
        if position >= 0:
            value = seeds.sample_seed(base, ordinal, self._part.start + position, index)
        streams.seed(value)
        self._picture = streams.mark()

    def make(self, position: int) -> Any:
        """One sample, or all that the dataset makes at once; raises :class:`SampleError`."""
        part = self._part
        if not self.whole:
            part = WorkItem(indices=[part.indices[position]], start=part.start + position)
        samples = fetch_samples(self._program, part, _ignore, self._seed)
        return samples if self.whole else samples[0]

    def note_draws(self) -> None:
        """Notes whether making the last sample or batch drew random numbers."""
        self.drew = self.drew or streams.drawn_since(self._picture)

    def collate(self, made: dict[int, Any]) -> Any:
        """The batch of the samples made; None without samples."""
        if not made:
            return None
        self._seed(-1, None)
        return collate(
            self._program.collate_fn, made[0] if self.whole else [made[position] for position in sorted(made)]
        )


def _make_first(program: Program, iteration: Iteration, part: WorkItem, when_large: Callable[[int], None]) -> None:
    """Makes the samples in reverse, for the state that this leaves; reports the first one, if it is large."""
    size_bytes = 0
    try:
        run = _Run(program, iteration, part)
        size_bytes = pack(run.make(run.positions[-1])).payload_bytes
    except Exception:  # the comparison will meet it again
        pass
    if size_bytes >= LARGE_SAMPLE_BYTES:
        when_large(size_bytes)
    _make(program, iteration, part, rest=True)


def _make(program: Program, iteration: Iteration, part: WorkItem, *, rest: bool = False) -> None:
    """Makes the samples in reverse and their batch, for the state that this leaves; ``rest``: all but the last."""
    run = _Run(program, iteration, part)
    made: dict[int, Any] = {}
    positions = run.positions[:-1] if rest else run.positions
    for position in reversed(positions):
        with contextlib.suppress(Exception):  # the comparison will meet it again
            made[position] = run.make(position)
    with contextlib.suppress(Exception):
        run.collate(made)


def _evidence(program: Program, iteration: Iteration, part: WorkItem, *, drew: bool, reverse: bool) -> Evidence:
    run = _Run(program, iteration, part)
    run.drew = drew
    made: dict[int, Any] = {}
    digests: dict[int, bytes] = {}
    for position in reversed(run.positions) if reverse else run.positions:
        try:
            made[position] = run.make(position)
            digests[position] = digest(made[position])
        except SampleError as error:
            digests[position] = _raised(error.__cause__)
        except Exception as error:
            digests[position] = _raised_by_program(error)
        run.note_draws()
    try:
        collated = digest(run.collate(made)) if made else b""
    except Exception as error:
        collated = _raised_by_program(error)
    if made:
        run.note_draws()
    return Evidence(tuple(digests[p] for p in run.positions), collated, run.drew)


def _raised_by_program(error: Exception) -> bytes:
    """A stand-in digest for a result that can't be made, or can't be pickled and so can't be compared.

    Stoker's own error would be the same on both sides and prove nothing: it is raised.
    """
    if is_own(error) and not isinstance(error, (pickle.PicklingError, TypeError, AttributeError)):
        raise error
    return _raised(error)


def _raised(error: BaseException | None) -> bytes:
    return blake2b(f"raised {type(error).__qualname__}".encode(), digest_size=16).digest()


def _ignore(position: int) -> None:
    pass

"""stoker as a library: a drop-in ``DataLoader``, and :func:`feed` for an existing loader.

Under ``stoker run`` they belong to the run; otherwise to a :class:`Serving` of this process, created at the first use
with the settings of the environment and the configuration files. stoker stores nothing in a loader: its attributes,
pickles and copies are those of torch's loader.
"""

from __future__ import annotations

import atexit
import logging
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import msgspec
import torch.utils.data as torch_data

from stoker.core.errors import ResumeError
from stoker.core.processes.forking import ForkedLock
from stoker.feed.loader.loader_feed import LoaderFeed
from stoker.feed.order.cursor import STATE_FORMAT, Cursor, check_fits
from stoker.feed.order.sampling import Bookmark, blank_cursor
from stoker.feed.purity import tiers
from stoker.feed.torch_private import (
    end_workers,
    forget_iterator,
    index_sampler_of,
    kept_iterator_of,
    makes_iterators_as_torch,
)
from stoker.records import events
from stoker.run.loaders import patch
from stoker.run.loaders.facts import LoaderExplanation, LoaderStats
from stoker.run.loaders.serving import Serving, call_site
from stoker.run.settings import resolve

_T = TypeVar("_T", covariant=True)
_logger = logging.getLogger("stoker")


@dataclass(slots=True)
class _Seat:
    """The state that stoker keeps for a loader."""

    site: str = ""
    bookmark: Bookmark | None = None
    """Bookmark of the last iterator."""
    pending: Cursor | None = None
    """A loaded state that the next iterator begins at."""
    unkept: str = ""
    """Why the last iterator has no state."""


_OFF = "stoker is off (`off` in its settings)"

_seats: weakref.WeakKeyDictionary[torch_data.DataLoader[Any], _Seat] = weakref.WeakKeyDictionary()
_own: Serving | None = None
_lock = ForkedLock()


def serving_of_process() -> Serving:
    """The :class:`Serving` of stoker's own loaders: of the run, of the surrounding ``feeding``, or of this process."""
    global _own
    current = patch.current()
    if current is not None:
        return current
    with _lock:
        if _own is None:
            _own = Serving(resolve().settings, [log_event])
            _own.clock.install()
            atexit.register(_own.close)
        return _own


def log_event(event: events.AnyEvent) -> None:
    """Sends notices to the logger ``stoker``, since there is no live line."""
    if isinstance(event, events.Notice):
        _logger.warning("%s", event.text)
    elif isinstance(event, events.WorkerLost) and event.released:
        _logger.warning("data worker %d was lost (%s); %d items made again", event.worker, event.cause, event.released)
    elif isinstance(event, events.SampleQuarantined):
        _logger.warning("sample %s %s (%s): it ended its data worker twice", event.index, event.path, event.action)


class DataLoader(torch_data.DataLoader[_T]):
    """torch's ``DataLoader`` (same arguments) with stoker's data workers and a position that can be saved.

    Save ``state_dict()`` between two batches and call ``load_state_dict(state)`` before the next ``iter()`` to resume
    at the next batch: in another process, with another number of workers and, with a ``DistributedSampler``, another
    number of ranks. Skipped samples of a map-style dataset are not made. The main random stream is the program's: for
    equal random numbers after a resume, save and restore ``torch.get_rng_state()``.
    """

    def __new__(cls, *_args: Any, **_kwargs: Any) -> DataLoader[_T]:  # not __init__: its signature stays torch's
        """Remembers where the program makes the loader."""
        self = super().__new__(cls)
        _seats[self] = _Seat(site=call_site(2))
        return self

    def _get_iterator(self) -> Any:
        seat = _seat_of(self)
        serving = serving_of_process()
        if seat.site:
            serving.sites.setdefault(self, seat.site)
        if serving.settings.report.off:
            if seat.pending is not None and not seat.pending.finished:
                raise ResumeError(f"`load_state_dict` needs an iterator of stoker's, but {_OFF}")
            seat.bookmark, seat.pending, seat.unkept = None, None, _OFF
            return patch.stock_iterator(self)
        iterator = serving.iterate(self, lambda: patch.stock_iterator(self), seat.pending)
        seat.pending = None
        seat.bookmark = getattr(iterator, "bookmark", None)
        seat.unkept = "" if seat.bookmark is not None else "it is left to torch: " + self.explain().reason
        return iterator

    def __iter__(self) -> Any:
        """The iterator, from a loaded state where there is one."""
        seat = _seat_of(self)
        persistent = kept_iterator_of(self)
        if seat.pending is not None and persistent is not None:
            end_workers(persistent)
            forget_iterator(self)
        iterator: Any = super().__iter__()
        seat.bookmark = getattr(iterator, "bookmark", None)
        return iterator

    def state_dict(self) -> dict[str, Any]:
        """The program's position, as a small dict of plain values (JSON serialises it).

        Raises:
            ResumeError: the loader's place is not kept, because torch serves it.
        """
        seat = _seat_of(self)
        if seat.unkept:
            raise ResumeError(f"`state_dict` needs an iterator of stoker's, but {seat.unkept}")
        if seat.pending is not None:
            cursor = seat.pending
        else:
            cursor = seat.bookmark.cursor() if seat.bookmark is not None else blank_cursor(index_sampler_of(self))
        return msgspec.to_builtins(cursor)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next ``iter()`` resume where ``state`` was taken (at the next epoch if that was the end of one).

        Raises:
            ResumeError: ``state`` is not one of ``state_dict``, or of another loader.
        """
        cursor = read_state(state)
        check_fits(index_sampler_of(self), cursor)
        seat = _seat_of(self)
        seat.pending, seat.bookmark, seat.unkept = cursor, None, ""

    def stats(self) -> LoaderStats:
        """Throughput, input wait and workers so far."""
        return stats(self)

    def explain(self) -> LoaderExplanation:
        """The tier that serves the loader, and why."""
        return explain(self)


def _seat_of(loader: torch_data.DataLoader[Any]) -> _Seat:
    seat = _seats.get(loader)
    if seat is None:  # a copy, or one that was unpickled
        seat = _seats[loader] = _Seat()
    return seat


def read_state(state: object) -> Cursor:
    """The cursor in what ``state_dict`` returned; raises :class:`ResumeError` for anything else."""
    kind = type(state).__name__
    fields = cast("Mapping[str, Any]", state) if isinstance(state, Mapping) else dict[str, Any]()
    found = fields.get("format")
    if found != STATE_FORMAT:
        what = f"format {found!r}" if found is not None else f"{kind} without a format"
        raise ResumeError(f"`state` must be what `state_dict` returned, of format {STATE_FORMAT}, got a {what}")
    try:
        return msgspec.convert(dict(fields), Cursor)
    except msgspec.ValidationError as error:
        raise ResumeError(f"`state` must be what `state_dict` returned: {error}") from None


def stats(loader: torch_data.DataLoader[Any]) -> LoaderStats:
    """Throughput, input wait and workers of any loader that stoker serves, so far."""
    serving = _serving_of(loader)
    feed = serving.known_feed(loader) if serving is not None else None
    if serving is None or feed is None:
        return _no_stats(loader)
    counters, window = feed.counters, serving.overall(feed)
    wait_s = window.split.input_wait_frac * window.active_s if window is not None else 0.0
    return LoaderStats(
        dataset=type(loader.dataset).__name__,
        tier=feed.choice.tier.value if feed.choice is not None else "",
        declared_workers=loader.num_workers,
        workers=feed.num_workers,
        iterations=feed.ordinal + 1,
        batches=counters.batches,
        samples=counters.samples,
        bytes=counters.bytes,
        samples_per_s=(window.samples_per_s or 0.0) if window is not None else 0.0,
        batches_per_s=window.batches_per_s if window is not None else 0.0,
        input_wait_s=wait_s,
        program_s=window.active_s - wait_s if window is not None else 0.0,
        starved_frac=counters.starved_steps / max(1, counters.batches),
        worker_cpu_s=counters.worker_cpu_s,
    )


def _no_stats(loader: torch_data.DataLoader[Any]) -> LoaderStats:
    zeros: dict[str, Any] = dict.fromkeys(("workers", "iterations", "batches", "samples", "bytes"), 0)
    rates = ("samples_per_s", "batches_per_s", "input_wait_s", "program_s", "starved_frac", "worker_cpu_s")
    zeros |= dict.fromkeys(rates, 0.0)
    return LoaderStats(dataset=type(loader.dataset).__name__, tier="", declared_workers=loader.num_workers, **zeros)


def explain(loader: torch_data.DataLoader[Any]) -> LoaderExplanation:
    """The tier that serves (or would serve) any loader, and why."""
    serving = _serving_of(loader) or serving_of_process()
    if serving.settings.report.off:
        return LoaderExplanation(tier="stock", reason=_OFF, evidence=(), settled=True)
    feed = serving.known_feed(loader)
    choice = feed.choice if feed is not None else None
    if choice is None:
        program = LoaderFeed.program_of(loader)
        choice = tiers.choose(program, index_sampler_of(loader), wish=serving.config.feed.tier)
    return LoaderExplanation(
        tier=choice.tier.value, reason=choice.reason, evidence=choice.evidence, settled=not choice.candidate
    )


def _serving_of(loader: torch_data.DataLoader[Any]) -> Serving | None:
    """The :class:`Serving` of a loader, without creating one."""
    return patch.serving_of(loader) or (_own if isinstance(loader, DataLoader) else None)


_Loader = TypeVar("_Loader", bound="torch_data.DataLoader[Any]")


def wrap(loader: _Loader) -> _Loader:
    """Has one existing loader (of torch's class or a subclass) served by stoker; returns the loader itself.

    From its next ``iter()`` on its batches come from stoker's data workers. Nothing else about it changes: class,
    attributes and methods stay, so other code sees torch's loader (it does not grow ``state_dict``; make a
    :class:`DataLoader` for that). Other loaders stay torch's.

    Raises:
        TypeError: it is no DataLoader, or one that makes its iterators in its own way.
    """
    if not isinstance(loader, torch_data.DataLoader):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"`loader` must be a torch DataLoader, got {type(loader).__name__}")
    if isinstance(loader, DataLoader):
        return loader
    if not makes_iterators_as_torch(loader):
        raise TypeError(
            f"`loader` must make its iterators as torch's DataLoader does, {type(loader).__name__} has its own "
            "way; wrap a plain DataLoader over the same dataset instead"
        )
    patch.serve_one(loader, serving_of_process)
    forget_iterator(loader)  # workers that persist from earlier iterations belong to torch
    return loader

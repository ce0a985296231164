# pyright: reportUnknownArgumentType=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# (torch's iterators are untyped)
"""Chooses the iterator for one ``iter(loader)``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader

from stoker.core.errors import ResumeError, WorkerStartError
from stoker.core.mishaps import is_own, reraise_from_handler
from stoker.core.places import call, standing_in
from stoker.feed import streams
from stoker.feed.loader.iterator import FedIterator
from stoker.feed.loader.loader_feed import LoaderFeed, Pace
from stoker.feed.order.cursor import Cursor, check_fits, inner_sampler, own_generator, set_state
from stoker.feed.program import Tier
from stoker.feed.torch_private import BaseIterator, index_sampler_of, stock_get_iterator


def serve(
    loader: DataLoader[Any],
    feed: LoaderFeed,
    pace: Pace,
    stock: Callable[[], BaseIterator],
    cursor: Cursor | None = None,
) -> BaseIterator:
    """An iterator over ``loader`` in the tier that fits it.

    Args:
        loader: the program's loader.
        feed: stoker's state for it.
        pace: notified of each step.
        stock: makes torch's own iterator.
        cursor: where to resume.
    """
    pace.begun(feed)
    try:
        return _serve(loader, feed, pace, stock, cursor)
    finally:
        pace.opened(feed)


def _serve(
    loader: DataLoader[Any],
    feed: LoaderFeed,
    pace: Pace,
    stock: Callable[[], BaseIterator],
    cursor: Cursor | None,
) -> BaseIterator:
    if cursor is not None:
        cursor = _prepare(loader, feed, cursor)
    if feed.choose(loader).tier is Tier.STOCK or (loader.num_workers == 0 and loader.timeout != 0):
        return stock()  # the latter raises torch's own error
    if loader.num_workers > 0 and DataLoader in type(loader).__mro__:  # not for a library's stand-in
        _check()(loader.check_worker_number_rationality)
    generators = [g for g in (loader.generator, torch.default_generator) if g is not None]
    states = [streams.torch_state(generator) for generator in generators]
    main = streams.save()
    try:
        return FedIterator(loader, feed, pace, cursor)
    except Exception as error:
        reraise_from_handler(error)
        if cursor is not None or not (isinstance(error, WorkerStartError) or is_own(error)):
            raise
        streams.restore(main)
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
        _tell(feed, error)
    return stock()  # outside the handler, so that its errors do not chain to ours


def _tell(feed: LoaderFeed, error: Exception) -> None:
    if isinstance(error, WorkerStartError):
        feed.listener.notice(f"{error.args[0]}; this loader runs on torch's own workers")
    else:
        feed.effort.failed("start of an iteration", error, "this loader is left to torch")
        feed.leave_to_torch("stoker failed to start its workers")


@functools.cache
def _check() -> Callable[..., None]:
    """Calls from torch's own line that checks the number of workers, which the warning names."""
    return standing_in(call, stock_get_iterator, "check_worker_number_rationality()")


def _prepare(loader: DataLoader[Any], feed: LoaderFeed, cursor: Cursor) -> Cursor | None:
    """The cursor, if it is in the middle of an iteration; None if the next iteration follows."""
    check_fits(index_sampler_of(loader), cursor)
    if cursor.finished:
        feed.ordinal = cursor.iteration
        generator = own_generator(inner_sampler(index_sampler_of(loader)))
        if generator is not None and cursor.generator is not None:
            set_state(generator, cursor.generator)
        return None
    choice = feed.choose(loader)
    if choice.tier is Tier.STOCK:
        raise ResumeError(f"`state` must be of a finished iteration for a loader left to torch: {choice.reason}")
    if cursor.shards is not None and cursor.shards != loader.num_workers:
        raise ResumeError(
            f"`num_workers` must be {cursor.shards} as when the state was saved, got {loader.num_workers}: each worker "
            "reads its own shard of an iterable dataset"
        )
    return cursor

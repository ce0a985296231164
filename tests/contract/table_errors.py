"""Cases on failures in the program's own code: the same exception at the same step, and what comes after it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from .datasets import Items, Rows
from .registry import case
from .transcript import Transcript


class TwoArguments(Exception):
    """An exception that cannot be made from a message alone."""

    def __init__(self, sample: int, reason: str) -> None:
        super().__init__(f"sample {sample}: {reason}")
        self.sample = sample


class WithMessage(Exception):
    """Has a ``message`` and takes it as a keyword."""

    message = ""

    def __init__(self, message: str = "none") -> None:
        super().__init__(message)
        self.message = message


class Failing(Dataset[Any]):
    """Fails at index 7 with the given kind of error."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> int:
        if index == 7:
            raise make_error(self.kind)
        return index


def make_error(kind: str) -> BaseException:
    """The exception of a kind."""
    made: dict[str, BaseException] = {
        "key": KeyError("missing"),
        "value": ValueError("bad value\nsecond line"),
        "index": IndexError("list index out of range"),
        "stop": StopIteration("over"),
        "two": TwoArguments(7, "torn file"),
        "message": WithMessage("from message"),
        "os": FileNotFoundError(2, "No such file or directory", "image7.jpg"),
        "unicode": UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        "memory": MemoryError("no room"),
        "assert": AssertionError(),
        "group": ExceptionGroup("several", [ValueError("a"), KeyError("b")]),
    }
    return made[kind]


def fails(kind: str, *, workers: tuple[int, ...] = (0, 2), batch_size: int | None = 2) -> Transcript:
    """Iterates on after the exception, as programs that skip bad batches do, then starts a new epoch."""
    t = Transcript()
    for count in workers:
        loader = DataLoader(Failing(kind), batch_size=batch_size, num_workers=count)
        iterator = t.open(loader)
        for _ in range(20 if batch_size is None else 11):
            t.take(iterator, stop=1)
        t.epoch(loader, stop=2)
    return t


@case("errors")
def key_error() -> Transcript:
    return fails("key")


@case("errors")
def value_error() -> Transcript:
    return fails("value")


@case("errors")
def value_error_without_batches() -> Transcript:
    return fails("value", batch_size=None)


@case("errors")
def index_error() -> Transcript:
    return fails("index")


@case("errors")
def stop_iteration_in_getitem() -> Transcript:
    """Stock ends the epoch silently; so do we."""
    return fails("stop")


@case("errors")
def error_with_message_keyword() -> Transcript:
    return fails("message")


@case("errors")
def memory_and_assertion_errors() -> Transcript:
    t = fails("memory")
    t.events += fails("assert").events
    return t


def failure_seen(kind: str) -> Transcript:
    """For exceptions that stock cannot rebuild: it raises RuntimeError, the original type is as good."""
    t = Transcript()
    for workers in (0, 2):
        iterator = t.open(DataLoader(Failing(kind), batch_size=2, num_workers=workers))
        t.take(iterator, stop=3)
        try:
            next(iterator)
        except Exception as error:
            original = make_error(kind)
            first = str(original).splitlines()[0]
            t.event("type", isinstance(error, type(original) | RuntimeError))
            told = [str(error), *getattr(error, "__notes__", [])]
            t.event("tells the message", any(first in text for text in told))
            t.note(f"{type(error).__name__}: {error}")
            error.__traceback__ = None
        t.take(iterator)
    return t


@case("errors")
def error_with_two_arguments() -> Transcript:
    return failure_seen("two")


@case("errors")
def error_of_unicode_and_files() -> Transcript:
    """Not exception groups, of which torch loses what they said: tests/faults/test_exceptions.py has those."""
    t = failure_seen("unicode")
    t.events += failure_seen("os").events
    return t


@case("errors")
def traceback_names_the_users_code() -> Transcript:
    """The text of the exception or its traceback shows the failing function, whatever process it ran in."""
    t = Transcript()
    for workers in (0, 2):
        try:
            list(DataLoader(Failing("value"), batch_size=2, num_workers=workers))
        except ValueError as error:
            frames = []
            traceback = error.__traceback__
            while traceback is not None:
                frames.append(traceback.tb_frame.f_code.co_name)
                traceback = traceback.tb_next
            t.event("shown", "__getitem__" in frames or "__getitem__" in str(error))
            del traceback
            t.raised(error)
    return t


def failing_collate(batch: list[Any]) -> Any:
    if any(y == 5 for _, y in batch):
        raise RuntimeError("cannot collate 5")
    return batch


@case("errors")
def error_in_collate() -> Transcript:
    t = Transcript()
    for workers in (0, 2):
        iterator = t.open(DataLoader(Rows(12), batch_size=2, collate_fn=failing_collate, num_workers=workers))
        for _ in range(7):
            t.take(iterator, stop=1)
    return t


@case("errors")
def errors_of_default_collate() -> Transcript:
    t = Transcript()
    wrong: list[list[Any]] = [[None, None], [torch.zeros(2), torch.zeros(3)], [object(), object()], [[1], [1, 2]]]
    wrong += [[{"a": 1}, {"b": 2}], [torch.eye(2).to_sparse()] * 2, [(1, 2), (1,)]]
    for items in wrong:
        for workers in (0, 2):
            t.epoch(DataLoader(Items(items), batch_size=2, num_workers=workers))
    return t


def failing_init(worker_id: int) -> None:
    raise OSError(f"no device for worker {'N' if worker_id >= 0 else ''}")


@case("errors")
def error_in_worker_init() -> Transcript:
    t = Transcript()
    t.epoch(DataLoader(Rows(12), batch_size=2, num_workers=2, worker_init_fn=failing_init))
    return t


class FailingSampler(Sampler[int]):
    """Fails after some indices; with workers that is inside ``iter()`` when the look-ahead gets there."""

    def __init__(self, after: int) -> None:
        self.after = after

    def __iter__(self) -> Iterator[int]:
        yield from range(self.after)
        raise ArithmeticError(f"no index after {self.after}")


@case("errors")
def error_in_sampler() -> Transcript:
    t = Transcript()
    for workers in (0, 2):
        for after in (0, 3, 15):
            loader = DataLoader(Rows(), batch_size=2, sampler=FailingSampler(after), num_workers=workers)
            t.epochs(loader)
    return t


@case("errors")
def index_outside_of_dataset() -> Transcript:
    t = Transcript()
    for workers in (0, 2):
        t.epoch(DataLoader(Rows(5), batch_size=2, sampler=[0, 1, 2, 99, 3, 4], num_workers=workers))
    return t


class NoLength(Dataset[Any]):
    """A map-style dataset without a length."""

    def __getitem__(self, index: int) -> int:
        return index


@case("errors")
def dataset_without_length() -> Transcript:
    t = Transcript()
    for workers in (0, 2):
        t.epoch(DataLoader(NoLength(), batch_size=2, sampler=range(5), num_workers=workers))
        t.attempt(lambda workers=workers: list(DataLoader(NoLength(), num_workers=workers)))
    return t


@case("errors")
def next_after_exhaustion() -> Transcript:
    t = Transcript()
    for options in ({}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}):
        loader = DataLoader(Rows(4), batch_size=2, **options)
        iterator = t.open(loader)
        for _ in range(5):
            t.take(iterator, stop=1)
            t.length(iterator)
        t.event("default", next(iterator, "none"))
        t.epoch(loader)
    return t


@case("errors")
def error_in_the_loop() -> Transcript:
    """The program's own exception in mid-epoch, caught outside; the traceback keeps the iterator alive for a while."""
    t = Transcript()
    loader = DataLoader(Rows(12), batch_size=2, shuffle=True, num_workers=2)
    for _ in range(2):
        try:
            for number, batch in enumerate(loader):
                t.batch(batch)
                if number == 1:
                    raise RuntimeError("in the loop")
        except RuntimeError as error:
            t.event("loop", str(error))
        t.rng("after")
    t.epoch(loader)
    t.event("no error is being handled", sys.exc_info()[0] is None)
    return t


class Unpicklable(Dataset[Any]):
    """A sample that no worker can send."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        return (lambda: index) if index == 3 else index


@case("errors")
def sample_made_by_lambda_without_workers() -> Transcript:
    t = Transcript()
    for batch in DataLoader(Unpicklable(), batch_size=None):
        t.event("batch", batch() if callable(batch) else batch)
    return t

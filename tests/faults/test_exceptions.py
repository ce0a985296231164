"""Exceptions of the user's code: their type, message and traceback as from torch, and a note with the sample."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Subset

from tests.faults.data import Harmful, Numbers, PrivateRng, Shards
from tests.faults.serve import in_child, loader_of, served

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]


class OddError(Exception):
    """Can't be made from a message."""

    def __init__(self, code: int, *, where: str) -> None:
        super().__init__(f"odd {code} at {where}")
        self.code = code


class KeepsAFile(Exception):
    """Can't be pickled."""

    def __init__(self) -> None:
        super().__init__("keeps a lock")
        import threading

        self.lock = threading.Lock()


def raising(make: Callable[[], BaseException]) -> Callable[[], object]:
    def harm() -> None:
        raise make()

    return harm


def local_class() -> BaseException:
    class NobodyFindsMe(Exception):
        pass

    return NobodyFindsMe("from inside a function")


ERRORS: dict[str, Callable[[], BaseException]] = {
    "value": lambda: ValueError("a bad\nvalue"),
    "key": lambda: KeyError("line one\nline two"),
    "os": lambda: FileNotFoundError(2, "No such file", "photographs/13.jpg"),
    "odd constructor": lambda: OddError(5, where="here"),
    "unicode": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad start"),
    "unpicklable": KeepsAFile,
    "local class": local_class,
    "no message": AssertionError,
    "stop iteration": lambda: StopIteration("early"),
    "group": lambda: ExceptionGroup("several", [ValueError("a"), TypeError("b")]),
    "runtime": lambda: RuntimeError("a {brace} and 100 %"),
}
LOADERS: dict[str, Callable[[Any], DataLoader[Any]]] = {
    "batches": lambda harm: loader_of(Harmful(32, {13: harm})),
    "single": lambda harm: loader_of(Harmful(32, {13: harm}), batch_size=None),
    "shuffled": lambda harm: loader_of(Harmful(32, {13: harm}), shuffle=True),
}


@dataclass(frozen=True)
class Outcome:
    """How an iteration ended; holds no frame, which would keep the iterator and its workers."""

    count: int
    """Batches before the end."""
    kind: str = ""
    text: str = ""
    notes: tuple[str, ...] = ()
    trace: str = ""

    @property
    def seen(self) -> tuple[int, str, str]:
        """What a program can see, without the frames of the loaders' own code."""
        text = re.sub(r'  File "[^"]*/(torch|stoker)/[^\n]*\n(    [^\n]*\n)*', "", self.text + "\n")
        return self.count, self.kind, re.sub(r"worker process \d+", "worker process N", text)


def stock(make: Callable[[], DataLoader[Any]]) -> Outcome:
    """What torch's own loader does, in a child that is killed: after a failure its workers take seconds to end."""
    kept: list[Any] = []
    return in_child(lambda: run(make, kept), 10.0)


def run(make: Callable[[], DataLoader[Any]], kept: list[Any] | None = None) -> Outcome:
    """Iterates once."""
    torch.manual_seed(5)
    count = 0
    try:
        iterator = iter(make())
        if kept is not None:
            kept.append(iterator)
        for _ in iterator:
            count += 1
    except BaseException as error:
        notes = tuple(getattr(error, "__notes__", ()))
        trace = "".join(traceback.format_exception(error))
        return Outcome(count, type(error).__qualname__, str(error), notes, trace)
    return Outcome(count)


@pytest.mark.parametrize("name", ERRORS)
@pytest.mark.parametrize("where", ["batches", "single"])
def test_as_from_torch(name: str, where: str) -> None:
    def make() -> DataLoader[Any]:
        return LOADERS[where](raising(ERRORS[name]))

    with served(workers=2):
        found = run(make)
    if name in ("unpicklable", "local class"):  # torch's own loader waits for ever, or says that a worker died
        assert found.kind == "RuntimeError"
        assert ("keeps a lock" if name == "unpicklable" else "NobodyFindsMe: from inside a function") in found.text
    elif name == "group":  # torch's own loader raises a TypeError about how groups are made
        assert found.kind == "RuntimeError"
        assert "ExceptionGroup: several" in found.text
    else:
        assert found.seen == stock(make).seen
    if name == "stop iteration":  # which ends the loop, there as here
        return
    assert "in harm" in found.trace
    (note,) = found.notes
    assert "sample 13 (photographs/13.jpg)" in note


def test_loader_goes_on_after_it() -> None:
    """Torch's loader delivers the batches behind a failed one to a program that catches."""

    def drive(loader: DataLoader[Any]) -> list[str]:
        found: list[str] = []
        iterator = iter(loader)
        while True:
            try:
                found.append(str(float(next(iterator).sum())))
            except StopIteration:
                return found
            except ValueError:
                found.append("failed")

    def make() -> DataLoader[Any]:
        return loader_of(Harmful(32, {13: raising(lambda: ValueError("bad"))}))

    expected = drive(make())
    with served(workers=2):
        assert drive(make()) == expected
    assert expected.count("failed") == 1
    assert len(expected) == 8


def bad_collate(samples: list[Any]) -> Any:
    raise OddError(7, where="collate")


def bad_init(worker: int) -> None:
    raise LookupError(f"no device for {worker}")


class BadStream(Shards):
    """Raises in the middle of a shard."""

    def __iter__(self) -> Any:
        for number, sample in enumerate(super().__iter__()):
            if number == 5:
                raise OddError(9, where="stream")
            yield sample


class BadBegin(Shards):
    """Raises before its first sample."""

    def __iter__(self) -> Any:
        raise PermissionError("no access to the shard")


class BadLength(Numbers):
    """A dataset that breaks in the main process."""

    def __len__(self) -> int:
        raise ConnectionError("no catalogue")


class BadBatches(Numbers):
    """Makes whole batches, badly."""

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        if 13 in indices:
            raise IndexError("no row 13")
        return [self[index] for index in indices]


class BadPinned(PrivateRng):
    """Impure, and fails at 13."""

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 13:
            raise OddError(13, where="pinned")
        return super().__getitem__(index)


class BadSampler:
    """Fails in the main process after some indices."""

    def __iter__(self) -> Any:
        yield from range(10)
        raise EOFError("end of the index file")

    def __len__(self) -> int:
        return 20


PLACES: dict[str, Callable[[], DataLoader[Any]]] = {
    "collate": lambda: loader_of(Numbers(32), collate_fn=bad_collate),
    "init": lambda: loader_of(Numbers(32), worker_init_fn=bad_init),
    "init of shards": lambda: loader_of(Shards(32), worker_init_fn=bad_init),
    "stream": lambda: loader_of(BadStream(48)),
    "begin of a stream": lambda: loader_of(BadBegin(32)),
    "length": lambda: loader_of(BadLength(32)),
    "whole batches": lambda: loader_of(BadBatches(32)),
    "pinned": lambda: loader_of(BadPinned(32)),
    "subset": lambda: loader_of(Subset(Harmful(32, {13: raising(lambda: ValueError("bad"))}), range(8, 24))),
    "sampler": lambda: loader_of(Numbers(32), sampler=BadSampler()),
    "ragged": lambda: loader_of(Ragged(32)),
    "batch can't travel": lambda: loader_of(Numbers(32), collate_fn=lambda samples: (yield)),
}


class Ragged(Numbers):
    """Samples that can't be stacked."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(index)


@pytest.mark.parametrize("place", [place for place in PLACES if place != "batch can't travel"])
def test_anywhere(place: str) -> None:
    with served(workers=2):
        found = run(PLACES[place])
    assert found.kind
    assert found.seen == stock(PLACES[place]).seen


def test_batch_that_can_not_travel() -> None:
    with served(workers=2):
        found = run(PLACES["batch can't travel"])
    assert found.kind == "TypeError"
    assert "generator" in found.text


def test_note_through_a_subset() -> None:
    with served(workers=2):
        (note,) = run(PLACES["subset"]).notes
    assert "sample 5 (photographs/13.jpg)" in note


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_ends_of_a_worker_from_user_code(kind: type[BaseException]) -> None:
    """``sys.exit()`` in a dataset ends the worker; torch's loader says that it died."""

    def make() -> DataLoader[Any]:
        return loader_of(Harmful(32, {13: raising(kind)}))

    with served(workers=2):
        found = run(make)
    assert found.kind
    assert "sample 13" in found.text + "".join(found.notes)

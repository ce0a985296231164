"""Serving loaders inside a test, and running a function in a forked child of it."""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import pickle
import select
import signal
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from stoker.records import events
from stoker.run.loaders import patch
from stoker.run.loaders.serving import Serving
from stoker.run.settings import RunSettings
from tests.faults.harness import name_of

# Templates forked from here collect garbage at their start: not over all that the tests have imported.
gc.collect()
gc.freeze()


class Record:
    """The events of one serving."""

    def __init__(self) -> None:
        self.all: list[events.AnyEvent] = []

    def lost(self) -> list[events.WorkerLost]:
        """Workers that were lost."""
        return [event for event in self.all if isinstance(event, events.WorkerLost)]

    def notices(self) -> list[str]:
        """Lines for people."""
        return [event.text for event in self.all if isinstance(event, events.Notice)]

    def opened(self) -> list[events.LoaderOpened]:
        """How loaders are served, in the order in which that was settled."""
        return [event for event in self.all if isinstance(event, events.LoaderOpened)]

    def tiers(self) -> list[str]:
        """Their tiers."""
        return [event.tier for event in self.opened()]

    def quarantined(self) -> list[events.SampleQuarantined]:
        """Samples that were left out."""
        return [event for event in self.all if isinstance(event, events.SampleQuarantined)]


@contextlib.contextmanager
def served(**settings: Any) -> Iterator[Record]:
    """Serves the loaders of this process under these settings (fields of ``Settings``)."""
    record = Record()
    serving = Serving(RunSettings.of(**settings), [record.all.append])
    patch.install(serving)
    try:
        yield record
    finally:
        patch.remove()
        serving.close()


def loader_of(dataset: Any, **options: Any) -> DataLoader[Any]:
    """A loader with a batch of 4 and two workers unless told otherwise."""
    return DataLoader(dataset, **{"batch_size": 4, "num_workers": 2, **options})


def plain(make: Callable[[], DataLoader[Any]], epochs: int = 1) -> list[Any]:
    """The batches that torch's own loader gives, epoch after epoch, and a draw from the main stream behind them."""
    assert patch.current() is None
    torch.manual_seed(11)
    loader = make()
    batches = [batch for _ in range(epochs) for batch in loader]
    return [*batches, torch.rand(3)]


def driven(
    make: Callable[[], DataLoader[Any]], at: Callable[[int, Any], None] = lambda step, iterator: None, epochs: int = 1
) -> list[Any]:
    """As :func:`plain`, with ``at(step, iterator)`` called before each ``next`` (steps count over epochs)."""
    torch.manual_seed(11)
    loader = make()
    batches: list[Any] = []
    step = 0
    for _ in range(epochs):
        iterator = iter(loader)
        while True:
            at(step, iterator)
            step += 1
            try:
                batches.append(next(iterator))
            except StopIteration:
                break
    return [*batches, torch.rand(3)]


def assert_same(found: list[Any], expected: list[Any]) -> None:
    """The same batches in the same order, bit for bit."""
    assert len(found) == len(expected)
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert _same(one, other), f"batch {number}: {one} is not {other}"


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


class Forking:
    """Stands for ``os.fork``: a template can fork so often, as under a limit of processes (which root is above).

    The training process, which forks a first worker itself, can fork while ``in_training``.
    """

    def __init__(self, most: int) -> None:
        self.left = most
        self.in_training = True
        self.fork = os.fork

    def __call__(self) -> int:
        if name_of(os.getpid()) == "stoker_template":
            self.left -= 1
            if self.left < 0:
                raise BlockingIOError(11, "Resource temporarily unavailable")
        elif not self.in_training:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return self.fork()


def in_child(function: Callable[[], Any], timeout_s: float = 30.0) -> Any:
    """Result of a function that runs in a forked child: limits that it sets, and harm that it does, stay there."""
    ours, theirs = os.pipe()
    stacks = os.memfd_create("stacks")
    pid = os.fork()
    if pid:
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.setpgid(pid, pid)  # here as well as in the child: whoever comes first
    else:
        os.close(ours)
        faulthandler.dump_traceback_later(0.8 * timeout_s, file=stacks)
        _answer(function, theirs)
    os.close(theirs)
    answer = b""
    try:
        while select.select([ours], [], [], timeout_s)[0]:
            data = os.read(ours, 1 << 16)
            answer += data
            if not data or len(answer) >= 8 + int.from_bytes(answer[:8], "little"):
                break  # its end would come only with that of the last process that the child forked
        else:
            shown = os.pread(stacks, 1 << 16, 0).decode()
            raise AssertionError(f"the child did not answer within {timeout_s} s:\n{shown}")
    finally:
        os.close(ours)
        os.close(stacks)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # with what it left: torch's own workers outlive some failures
        _, status = os.waitpid(pid, 0)
    assert answer, f"the child ended without an answer, wait status {status}"
    failure, value = pickle.loads(answer[8:])
    assert not failure, failure
    return value


def _answer(function: Callable[[], Any], fd: int) -> None:
    with contextlib.suppress(PermissionError):
        os.setpgid(0, 0)
    torch.set_num_threads(1)  # the parent's pool of threads is not in the child, and would be waited for
    try:
        body = pickle.dumps(("", function()))
    except BaseException:
        body = pickle.dumps((traceback.format_exc(), None))
    with contextlib.suppress(OSError), os.fdopen(fd, "wb") as pipe:
        pipe.write(len(body).to_bytes(8, "little") + body)
    os._exit(0)

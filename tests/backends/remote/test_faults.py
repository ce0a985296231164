"""Whatever dies: the same batches, exactly once, one loss that blames no sample, and nothing is left on any machine."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.backends.remote.hosts import Host, Slow, Taking, gateways, opened
from tests.faults.harness import below, is_alive, named
from tests.faults.serve import Record, loader_of, served
from tests.waiting import await_that

pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(110),
    pytest.mark.slow("a host loads the program for each of them"),
]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    with opened(tmp_path_factory.mktemp("host")) as host:
        yield host


def harm(host: Host, then: Callable[[Taking, Record], None]) -> Record:
    """A program with workers elsewhere, to which something happens; nothing of it is left."""
    with served(**host.settings) as record:
        taking = Taking(loader_of(Slow(), num_workers=1))
        taking.until_away()
        then(taking, record)
        taking.take(60)
        del taking.iterator
    assert not gateways()
    await_that("nothing is left on the host", host.is_empty)
    assert not record.quarantined()
    return record


def test_a_worker_there(host: Host) -> None:
    def kill(taking: Taking, record: Record) -> None:
        os.kill(host.workers()[0], signal.SIGKILL)
        taking.until_away(20)

    (lost,) = harm(host, kill).lost()
    assert "SIGKILL" in lost.cause
    assert lost.place == host.address


@pytest.mark.slow("the host is called again after five seconds")
def test_its_process_under_a_later_loader_comes_back_as_well(host: Host) -> None:
    """No item was made here for that loader to compare: one of an earlier loader of the program does."""
    with served(**host.settings) as record:
        dataset = Slow()
        taking = Taking(loader_of(dataset, num_workers=1))
        taking.until_away()
        del taking
        taking = Taking(loader_of(dataset, num_workers=1))
        taking.until_away()
        os.kill(host.sessions()[0], signal.SIGKILL)
        while not record.lost():
            taking.take(1)
        taking.until_away(5)
        del taking.iterator
    await_that("nothing is left on the host", host.is_empty)


@pytest.mark.slow("the host is called again after five seconds")
def test_its_process_there_is_one_loss_and_it_comes_back(host: Host) -> None:
    def kill(taking: Taking, record: Record) -> None:
        os.kill(host.sessions()[0], signal.SIGKILL)
        taking.until_away(20)

    lost = harm(host, kill).lost()
    assert {one.cause for one in lost} == {f"`{host.address}` is lost: it closed the connection"}


def test_one_that_stops_there(host: Host) -> None:
    def stop(taking: Taking, record: Record) -> None:
        (session,) = host.sessions()
        os.kill(session, signal.SIGSTOP)
        while not record.lost():
            taking.take(1)
        os.kill(session, signal.SIGCONT)

    assert all("silent" in lost.cause for lost in harm(host, stop).lost())


@pytest.mark.slow("the first of this file has the host load the program")
def test_each_item_counts_once_where_it_was_made(host: Host) -> None:
    def count(taking: Taking, record: Record) -> None:
        items, away = taking.counters.items, taking.away
        taking.take(60)
        made, made_there = taking.counters.items - items, taking.away - away
        assert 0 < made_there < made, "the worker here makes some of them as well"

    harm(host, count)


@pytest.mark.slow("another gateway starts, calls and has the program loaded")
def test_the_gateway(host: Host) -> None:
    def kill(taking: Taking, record: Record) -> None:
        (gateway,) = gateways()
        os.kill(gateway, signal.SIGKILL)
        taking.until_away(20)

    assert all("gateway" in lost.cause for lost in harm(host, kill).lost())


@pytest.mark.slow("starts a host")
def test_the_host_itself(tmp_path: Path) -> None:
    with opened(tmp_path) as host:

        def kill(taking: Taking, record: Record) -> None:
            everybody = [*host.sessions(), *host.workers()]
            host.process.kill()
            host.process.wait()
            for pid in everybody:
                await_that("it dies with the host", lambda pid=pid: not os.path.exists(f"/proc/{pid}"))

        record = harm(host, kill)
    assert any("called again" in text for text in record.notices())


PROGRAM = """
import torch
from torch.utils.data import DataLoader
from tests.backends.remote.hosts import Slow, Taking
import stoker, sys

with stoker.feeding(backend=sys.argv[1], remote_secret_file=sys.argv[2], workers=1, remote_workers=2):
    taking = Taking(DataLoader(Slow(), batch_size=4, num_workers=1))
    taking.until_away()
    print("away", flush=True)
    taking.take(100_000)
"""


@contextlib.contextmanager
def training_with(host: Host, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program in a process of its own, once other machines have made items for it."""
    program = folder / "program.py"
    program.write_text(PROGRAM)
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, str(program), host.settings["backend"], str(host.secret)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environ) as training:
        assert training.stdout is not None
        assert training.stdout.readline() == b"away\n"
        yield training


def test_the_training_process(host: Host, tmp_path: Path) -> None:
    with training_with(host, tmp_path) as training:
        (gateway,) = named("stoker_gateway", below(training.pid))
        everybody = below(training.pid)
        assert gateway in everybody
        training.kill()
    await_that("nothing is left on the host", host.is_empty)
    for pid in everybody:
        await_that("nothing is left here", lambda pid=pid: not is_alive(pid))


def test_a_stopped_gateway_ends_with_its_training_process(host: Host, tmp_path: Path) -> None:
    with training_with(host, tmp_path) as training:
        (gateway,) = named("stoker_gateway", below(training.pid))
        os.kill(gateway, signal.SIGSTOP)
        training.kill()
    await_that("it dies with its parent, though it was stopped", lambda: not is_alive(gateway))
    await_that("nothing is left on the host", host.is_empty)


@pytest.mark.slow("another gateway starts, calls and has the program loaded")
def test_a_gateway_that_stops(host: Host) -> None:
    def stop(taking: Taking, record: Record) -> None:
        (gateway,) = gateways()
        os.kill(gateway, signal.SIGSTOP)
        taking.until_away(20)
        assert gateways() != [gateway]

    assert all("gateway" in lost.cause for lost in harm(host, stop).lost())


class Link:
    """A link to a host, which can be cut without a word to either side."""

    def __init__(self, address: str) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self._to = address.rpartition(":")
        self.is_cut = threading.Event()
        self._socks: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                far = socket.create_connection((self._to[0], int(self._to[2])))
                self._socks += [near, far]
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                if self.is_cut.is_set():
                    return
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._server.close()
        for sock in self._socks:
            sock.close()


@pytest.mark.slow("a host ends what it has for a silent gateway after ten seconds")
def test_a_link_that_is_cut_without_a_word(host: Host) -> None:
    link = Link(host.address)
    with served(**{**host.settings, "backend": f"static:{link.address}"}) as record:
        taking = Taking(loader_of(Slow(), num_workers=1))
        taking.until_away()
        link.is_cut.set()
        while not record.lost():
            taking.take(1)
        taking.take(60)
        assert all("silent" in lost.cause for lost in record.lost())
        await_that("the host ends its workers", lambda: not host.workers())
        del taking.iterator
    link.close()
    await_that("nothing is left on the host", host.is_empty)
